"""Buckets: rules/health.py's bucket as Spark works it out, in whole numbers as well."""

from pyspark.sql import Column
from pyspark.sql import functions as f

BITS = 31
"""A duration in milliseconds has no more."""
MARKS = tuple(int(2 ** (BITS - 1 + place / 4)) + 1 for place in (1, 2, 3))
"""The first whole numbers of a doubling's second, third and last quarter, at full length."""


def bucket(ms: Column) -> Column:
    """``floor(4 log2(ms))``: the number of its bits says the doubling, the bits which quarter."""
    whole = f.greatest(ms, f.lit(1)).cast("long")
    doubling = f.length(f.bin(whole)) - f.lit(1)
    place = doubling * f.lit(4)
    # With zeroes behind all numbers are equally long.
    full = f.call_function("shiftleft", whole, (f.lit(BITS - 1) - doubling).cast("int"))
    for mark in MARKS:
        place += (full >= f.lit(mark)).cast("int")
    return place.cast("int")
