"""Spark queries of the jobs, and the places for their results."""
