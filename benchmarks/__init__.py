"""Ratios against peers, side by side in one run: `python -m benchmarks`, or `make bench`."""
