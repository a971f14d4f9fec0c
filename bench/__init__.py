"""The commands that measure what the engine reaches: `python -m bench --help`."""
