"""Run a demo: a complete broker with good and bad consumers, and a running commentary."""
