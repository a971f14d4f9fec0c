"""The REST API of channels, producers, consumers, keys and publishing."""
