"""The commands of the broker, and the demo."""
