"""Clients of the REST API, each against a real broker."""
