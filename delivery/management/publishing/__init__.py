"""Publish a file of messages in batches, and report the result of each line."""
