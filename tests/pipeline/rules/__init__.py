"""Tests of the pipeline's pure functions."""
