"""Read and count the attempts of a segment's deliveries in the order of their storage.

A database that joins the tables looks up each delivery's attempts in an index, and then each
attempt in its table. Nearly all attempts are made soon after their delivery was created, so both
tables have about the same order. Attempts are therefore read in one range and matched here. Later
ones are looked up.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa

from pipeline.broker import executor, tables
from pipeline.lake import eligible, totals
from pipeline.lake.eligible import DELIVERIES, Cutoffs
from pipeline.lake.totals import Numbers

RANGE_QUANTILE = 0.99
"""The range ends when this share of the deliveries has ended."""
MAX_EXTENSION = 4
"""It extends past the last delivery by at most 1/MAX_EXTENSION of the time from first to last."""
SLACK_MS = 1000
"""Milliseconds between the end of a delivery and the key of its last attempt."""
MAX_READ_RATIO = 2
"""With more than so many times the wanted rows in the range, the database joins instead."""
LOOKUP_KEYS = 1000
"""Deliveries in one query."""
COLUMNS = ("id", "attempt_count", "finished_at", *(column.name for column in tables.OWNER_COLUMNS))
EPOCH_MS = int(tables.EPOCH.timestamp()) * 1000


class SegmentDeliveries:
    """Deliveries of a segment in the order of their keys, with their numbers of attempts."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next deliveries; call it before all other methods."""
        self._batches.append(batch.select(COLUMNS))

    @cached_property
    def _all(self) -> pa.RecordBatch:
        (batch,) = pa.Table.from_batches(self._batches).combine_chunks().to_batches()
        return batch

    @cached_property
    def _keys(self) -> Numbers:
        return totals.numbers(self._all, "id")

    @cached_property
    def _expected(self) -> Numbers:
        """Number of attempts of each delivery."""
        return totals.numbers(self._all, "attempt_count")

    @cached_property
    def _read_counts(self) -> Numbers:
        """Number of each delivery's attempts that were read."""
        return np.zeros(len(self._keys), np.int64)

    @property
    def attempts(self) -> int:
        """Number of attempts of all deliveries."""
        return int(self._expected.sum())

    @property
    def key_range(self) -> tuple[int, int]:
        """Keys (first inclusive, last exclusive) between which nearly all of the attempts are."""
        first, last = int(self._keys[0]), int(self._keys[-1])
        ended_ms = self._all.column("finished_at").cast(pa.int64()).to_numpy() // 1000
        took_ms = ended_ms - EPOCH_MS - (self._keys >> tables.TIME_SHIFT)
        extension_ms = ((last - first) >> tables.TIME_SHIFT) // MAX_EXTENSION
        more_ms = min(max(int(np.quantile(took_ms, RANGE_QUANTILE)), 0), extension_ms) + SLACK_MS
        return first, min(last + (more_ms << tables.TIME_SHIFT), tables.LARGEST_KEY)

    def match(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keep the attempts of these deliveries, and add the columns of their deliveries."""
        wanted = totals.numbers(batch, "delivery_id")
        places = np.searchsorted(self._keys, wanted).clip(max=len(self._keys) - 1)
        is_own = self._keys[places] == wanted
        if not is_own.all():
            batch, places = batch.filter(pa.array(is_own)), places[is_own]
        self._read_counts += np.bincount(places, minlength=len(self._keys))
        owner_columns = [
            self._all.column(column.name).take(pa.array(places)) for column in tables.OWNER_COLUMNS
        ]
        return pa.RecordBatch.from_arrays(
            [*batch.columns, *owner_columns], schema=tables.ATTEMPTS.schema
        )

    def incomplete(self) -> Iterator[list[int]]:
        """Yield lists of deliveries of which attempts are missing."""
        missing = self._keys[self._read_counts != self._expected].tolist()
        for start in range(0, len(missing), LOOKUP_KEYS):
            yield missing[start : start + LOOKUP_KEYS]


def read(deliveries: SegmentDeliveries, where: str) -> Iterator[pa.RecordBatch]:
    """Yield all attempts of these deliveries, each once. ``where`` is their condition in SQL."""
    low, high = deliveries.key_range
    condition = f"a.id >= {low:d} AND a.id < {high:d}"
    if _count(tables.ATTEMPTS_ONLY, condition) > MAX_READ_RATIO * deliveries.attempts:
        yield from joined(where)
        return
    alone = tables.ATTEMPTS_ONLY
    for batch in executor.read(alone.select(f"{condition} ORDER BY a.id"), alone.schema):
        yield deliveries.match(batch)
    for ids in deliveries.incomplete():
        listed = ", ".join(map(str, ids))
        yield from joined(f"d.id IN ({listed}) AND (a.id < {low:d} OR a.id >= {high:d})")


def joined(where: str) -> Iterator[pa.RecordBatch]:
    """Yield the attempts that the database joined with their deliveries."""
    table = tables.ATTEMPTS_OF_DELIVERIES
    yield from executor.read(table.select(f"{where} ORDER BY d.id"), table.schema)


def totals_of(low: int, high: int, limits: Cutoffs, deliveries: int) -> Iterator[dict[str, int]]:
    """Yield totals of a segment's attempts, the quick way first where it is worthwhile.

    The quick way totals a range of the index by delivery, and subtracts the attempts of deliveries
    that are not eligible. It gives the same result unless there are attempts without a delivery.
    """
    row_count = _count(tables.DELIVERIES, f"d.id >= {low:d} AND d.id < {high:d}")
    if row_count <= MAX_READ_RATIO * deliveries:
        own = f"a.delivery_id >= {low:d} AND a.delivery_id < {high:d}"
        sums = totals.of_tables("attempts", own, tables.ATTEMPTS_ONLY.source)
        if row_count > deliveries:
            ineligible = totals.of_tables("attempts", eligible.not_in_segment(low, high, limits))
            sums = {name: value - ineligible[name] for name, value in sums.items()}
        yield sums
    yield totals.of_tables("attempts", eligible.where(DELIVERIES, low, high, limits))


def _count(table: tables.Table, where: str) -> int:
    schema = pa.schema([("found", pa.int64())])
    sql = f"SELECT COUNT(*) AS found FROM {table.source} WHERE {where}"
    (batch,) = executor.read(sql, schema)
    return int(batch.column("found")[0].as_py())
