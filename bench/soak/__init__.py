"""The soak: load, difficult consumers and random kills for minutes or hours, then the accounts."""
