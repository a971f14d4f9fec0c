"""Modules injected into the broker's processes for a profile."""
