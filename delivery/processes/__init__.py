"""The processes of an installation: rows with heartbeats, signals, the task queue."""
