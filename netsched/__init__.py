"""Scheduling the network under distributed deep learning: simulate, emulate, deploy one policy."""
