"""From a publish request to a stored message."""
