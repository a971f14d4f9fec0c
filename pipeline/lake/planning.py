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
from pipeline.lake.ledger import Range, Segment

SEGMENT_ROWS = 200_000
SEGMENT_BYTES = 256 << 20
"""A segment ends at so many bytes of bodies, or at its number of rows, whichever comes first."""
SECOND = 1 << (tables.TIME_SHIFT + 10)
"""Keys of 1,024 milliseconds; a day has a whole number of them."""
MINUTE = 75 * SECOND
"""Keys of 76.8 seconds; a day has a whole number of them."""
COARSE = 4
"""A minute is divided if it would be more than 1/COARSE of a segment."""
SOURCE = {
    "deliveries": ("delivery_delivery d", "d.id", "0"),
    "messages": ("channels_app_message m", "m.id", "m.body_bytes"),
}
"""By kind: FROM clause, key, and the bytes of a row."""

Span = tuple[int, int, int, int]
"""First key (inclusive), last key (exclusive), eligible rows between them, and their bytes."""


def days(database: Database, kind: str, limits: Cutoffs) -> list[date]:
    """Return the days in which eligible rows may have been made, from the oldest row on."""
    source, key, _ = SOURCE[kind]
    oldest = database.read(f"SELECT MIN({key}) FROM {source}")[0][0]
    if oldest is None:
        return []
    first, last = tables.made_at(int(oldest)).date(), limits.latest.date()
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def of_day(
    database: Database, kind: str, day: date, limits: Cutoffs, under_way: Iterable[Segment]
) -> Iterator[Range]:
    """Yield segments of rows made on that day, outside the unfinished segments."""
    low, high = tables.first_key(_start(day)), tables.first_key(_start(day + timedelta(days=1)))
    high = min(high, tables.first_key(limits.latest))
    taken = [(it.low, it.high) for it in under_way if it.kind == kind and it.day == day]
    start = rows = size = 0
    end = low
    for first, behind, count, more in _spans(database, kind, low, high, limits, taken):
        is_free = all(behind <= other[0] or first >= other[1] for other in taken)
        blocked = any(end <= other[0] < behind for other in taken)
        if rows and (blocked or rows + count > SEGMENT_ROWS or size + more > SEGMENT_BYTES):
            yield Range(kind, day, start, end, limits, rows)
            rows = size = 0
        if is_free:
            start = start if rows else first
            rows, size, end = rows + count, size + more, behind
    if rows:
        yield Range(kind, day, start, end, limits, rows)


def _spans(
    database: Database,
    kind: str,
    low: int,
    high: int,
    limits: Cutoffs,
    taken: Sequence[tuple[int, int]],
) -> Iterator[Span]:
    """Yield all spans, oldest first; by the second around unfinished segments."""
    for minute in _counted(database, kind, low, high, limits, MINUTE):
        first, behind, rows, size = minute
        is_small = rows <= SEGMENT_ROWS // COARSE and size <= SEGMENT_BYTES // COARSE
        if is_small and all(behind <= other[0] or first >= other[1] for other in taken):
            yield minute
        else:
            yield from _counted(database, kind, first, min(high, behind), limits, SECOND)


def _counted(
    database: Database, kind: str, low: int, high: int, limits: Cutoffs, step: int
) -> list[Span]:
    source, key, size = SOURCE[kind]
    whole = "DIV" if database.is_mysql else "/"
    rows = database.read(
        f"SELECT {key} {whole} {step:d}, COUNT(*), SUM({size}) FROM {source} "
        f"WHERE {eligible.where(kind, low, high, limits)} GROUP BY 1 ORDER BY 1"
    )
    return [
        (int(number) * step, (int(number) + 1) * step, int(count), int(more))
        for number, count, more in rows
    ]


def _start(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)
