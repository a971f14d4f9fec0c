"""Divide eligible rows into segments of about the same size, none across midnight.

Rows are counted by the time of their keys, day after day in the order of storage: by the minute,
and by the second where a minute has too many. Rows in between that are not yet eligible, such as
dead letters with a longer retention or deliveries of a paused consumer, are skipped; a later
segment of the same time takes them.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta

from pipeline.broker import tables
from pipeline.broker.database import Database
from pipeline.lake import eligible
from pipeline.lake.eligible import Cutoffs
from pipeline.lake.ledger import PlannedRange, Segment

SEGMENT_ROWS = 200_000
SEGMENT_BYTES = 256 << 20
"""A segment ends at so many bytes of bodies, or at its number of rows, whichever comes first."""
SECOND = 1 << (tables.TIME_SHIFT + 10)
"""Keys of 1,024 milliseconds; a day has a whole number of them."""
MINUTE = 75 * SECOND
"""Keys of 76.8 seconds; a day has a whole number of them."""
MINUTE_DIVISOR = 4
"""A minute is divided if it would be more than 1/MINUTE_DIVISOR of a segment."""
SOURCES = {
    "deliveries": ("delivery_delivery d", "d.id", "0"),
    "messages": ("channels_app_message m", "m.id", "m.body_bytes"),
}
"""By kind: FROM clause, key, and the bytes of a row."""

KeyCount = tuple[int, int, int, int]
"""First key (inclusive), last key (exclusive), eligible rows between them, and their bytes."""


def days(database: Database, kind: str, limits: Cutoffs) -> list[date]:
    """Return the days in which eligible rows may have been made, from the oldest row on."""
    source, key, _ = SOURCES[kind]
    oldest = database.read(f"SELECT MIN({key}) FROM {source}")[0][0]
    if oldest is None:
        return []
    first, last = tables.created_at(int(oldest)).date(), limits.latest.date()
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def segments_of_day(
    database: Database, kind: str, day: date, limits: Cutoffs, unfinished: Iterable[Segment]
) -> Iterator[PlannedRange]:
    """Yield segments of rows made on that day, outside the unfinished segments."""
    low, high = tables.first_key(_start(day)), tables.first_key(_start(day + timedelta(days=1)))
    high = min(high, tables.first_key(limits.latest))
    taken = [
        (segment.low, segment.high)
        for segment in unfinished
        if segment.kind == kind and segment.day == day
    ]
    start = rows = size = 0
    end = low
    for first, stop, count, more in _count_keys(database, kind, low, high, limits, taken):
        is_free = all(stop <= other[0] or first >= other[1] for other in taken)
        blocked = any(end <= other[0] < stop for other in taken)
        if rows and (blocked or rows + count > SEGMENT_ROWS or size + more > SEGMENT_BYTES):
            yield PlannedRange(kind, day, start, end, limits, rows)
            rows = size = 0
        if is_free:
            start = start if rows else first
            rows, size, end = rows + count, size + more, stop
    if rows:
        yield PlannedRange(kind, day, start, end, limits, rows)


def _count_keys(
    database: Database,
    kind: str,
    low: int,
    high: int,
    limits: Cutoffs,
    taken: Sequence[tuple[int, int]],
) -> Iterator[KeyCount]:
    """Yield all spans, oldest first; by the second around unfinished segments."""
    for minute in _count_rows(database, kind, low, high, limits, MINUTE):
        first, stop, rows, size = minute
        is_small = (
            rows <= SEGMENT_ROWS // MINUTE_DIVISOR and size <= SEGMENT_BYTES // MINUTE_DIVISOR
        )
        if is_small and all(stop <= other[0] or first >= other[1] for other in taken):
            yield minute
        else:
            yield from _count_rows(database, kind, first, min(high, stop), limits, SECOND)


def _count_rows(
    database: Database, kind: str, low: int, high: int, limits: Cutoffs, step: int
) -> list[KeyCount]:
    source, key, size = SOURCES[kind]
    rows = database.read(
        f"SELECT {key} {database.dialect.whole_division} {step:d}, COUNT(*), SUM({size}) "
        f"FROM {source} WHERE {eligible.where(kind, low, high, limits)} GROUP BY 1 ORDER BY 1"
    )
    return [
        (int(number) * step, (int(number) + 1) * step, int(count), int(more))
        for number, count, more in rows
    ]


def _start(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)
