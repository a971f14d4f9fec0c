"""The demo: a whole broker with consumers that behave and misbehave, told as it happens."""
