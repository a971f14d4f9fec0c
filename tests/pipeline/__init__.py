"""Tests of the data pipeline: real Spark over the broker's real tables."""
