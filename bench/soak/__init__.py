"""Run load with difficult consumers and random kills for minutes or hours, then check all
messages."""
