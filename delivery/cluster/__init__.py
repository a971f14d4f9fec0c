"""The supervisor and the processes that it keeps running."""
