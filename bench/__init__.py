"""Measure the broker's performance: `python -m bench --help`."""
