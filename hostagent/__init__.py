"""The agent that runs beside training jobs, and the client that a training script imports.

Importing the client costs a few milliseconds and needs the standard library only: it lives in other
people's processes.
"""
