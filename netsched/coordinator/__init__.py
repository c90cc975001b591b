"""The coordinator: it hears from every host's agent and tells each its part of one plan.

What decides is the simulator's policy object, asked through the same gate, on a view made by the same code.
"""
