"""List the rows of the table; each module measures one subject."""

from bench.rows import (
    dead_letters,
    floor,
    growth,
    isolation,
    lanes,
    latency,
    lateness,
    memory,
    neighbours,
    profile,
    receive,
    recovery,
    rest,
    scale,
    scheduled,
    shared,
    sqs,
    stream,
    throughput,
    urgent,
)
from bench.stage import Row

ROWS: tuple[Row, ...] = (
    *throughput.ROWS,
    *receive.ROWS,
    *sqs.ROWS,
    *stream.ROWS,
    *latency.ROWS,
    *lateness.ROWS,
    *recovery.ROWS,
    *isolation.ROWS,
    *neighbours.ROWS,
    *urgent.ROWS,
    *shared.ROWS,
    *lanes.ROWS,
    *rest.ROWS,
    *floor.ROWS,
    *profile.ROWS,
    *growth.ROWS,
    *memory.ROWS,
    *scale.ROWS,
    *scheduled.ROWS,
    *dead_letters.ROWS,
)
"""In the order of the table and of the measurement."""
