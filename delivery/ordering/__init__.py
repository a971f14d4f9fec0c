"""Deliver the messages of an ordering key one at a time, in their order."""
