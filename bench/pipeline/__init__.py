"""The data pipeline measured from outside: its jobs, and the same questions asked elsewhere."""
