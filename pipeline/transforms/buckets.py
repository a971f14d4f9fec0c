"""Compute the bucket of rules/health.py in Spark, also with integers."""

from pyspark.sql import Column
from pyspark.sql import functions as f

BITS = 31
"""Maximum bits of a duration in milliseconds."""
MARKS = tuple(int(2 ** (BITS - 1 + place / 4)) + 1 for place in (1, 2, 3))
"""The first integers of the second, third and last quarter of a doubling, at full length."""


def bucket(ms: Column) -> Column:
    """Return ``floor(4 log2(ms))``: the bit length gives the doubling, the bits its quarter."""
    whole = f.greatest(ms, f.lit(1)).cast("long")
    doubling = f.length(f.bin(whole)) - f.lit(1)
    place = doubling * f.lit(4)
    # Shift left until all numbers have the same length.
    full = f.call_function("shiftleft", whole, (f.lit(BITS - 1) - doubling).cast("int"))
    for mark in MARKS:
        place += (full >= f.lit(mark)).cast("int")
    return place.cast("int")
