"""Run load with difficult consumers and random kills, then check every message."""
