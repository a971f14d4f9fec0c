"""The rows of the table: each module measures one thing."""

from bench.rows import throughput
from bench.stage import Row

ROWS: tuple[Row, ...] = (*throughput.ROWS,)
"""In the order of the table."""
