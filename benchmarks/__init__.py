"""Timed comparisons, printed as ratios of one run: `python -m benchmarks`."""
