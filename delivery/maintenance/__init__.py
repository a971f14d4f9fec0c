"""Sweeps and housekeeping: retention, reconciliation, recurring messages."""
