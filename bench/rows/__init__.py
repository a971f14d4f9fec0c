"""The rows of the table: each module measures one thing."""

from bench.rows import isolation, latency, recovery, rest, throughput
from bench.stage import Row

ROWS: tuple[Row, ...] = (
    *throughput.ROWS,
    *latency.ROWS,
    *recovery.ROWS,
    *isolation.ROWS,
    *rest.ROWS,
)
"""In the order of the table, in which they are also measured."""
