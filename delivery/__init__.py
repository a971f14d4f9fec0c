"""How a message gets to its consumers."""
