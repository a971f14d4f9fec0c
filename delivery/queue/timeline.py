"""List upcoming messages by time, and count them by time span (S4-04).

Served by one index, (channel, due_at, id): messages that are no longer due lie before the range,
and cancelling a message makes it no longer due.
"""

import heapq
import math
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from channels_app.database import raw
from channels_app.database.raw import dialect
from channels_app.models import Message

MAX_COUNTED = 100_000
"""Most messages counted for one response; takes MariaDB about 30 ms."""
MAX_BUCKETS = 1000
CHANNELS_PER_QUERY = 40
TABLE = Message._meta.db_table
BY_INDEX = dialect.hint("message_timeline")


class TimelinePosition(NamedTuple):
    """A position on the timeline; many messages may have the same time."""

    due_at: datetime
    id: int


@dataclass(frozen=True, slots=True)
class TimelineLoad:
    """Numbers of messages due in each time span."""

    begins: datetime
    """Start; a multiple of the width since 1970."""
    width: timedelta
    counts: list[int]
    complete: bool
    """False if there are more than were counted; of one channel the earliest are counted."""


def ahead(
    channel_ids: Sequence[int],
    begin: datetime,
    end: datetime,
    most: int,
    after: TimelinePosition | None,
) -> list[TimelinePosition]:
    """Return the next ``most`` positions from ``begin``, or after ``after``, to before ``end``."""
    places: list[list[TimelinePosition]] = []
    for group in _groups(channel_ids):
        rows = raw.read(*ahead_sql(group, begin, end, most, after))
        places.append(sorted(TimelinePosition(raw.instant(due_at), key) for key, due_at in rows))
    return list(islice(heapq.merge(*places), most))


def load(
    channel_ids: Sequence[int], begin: datetime, end: datetime, width: timedelta
) -> TimelineLoad:
    """Count by spans of ``width``, in whole seconds, beginning with the one around ``begin``."""
    counts: Tally[int] = Tally()
    complete = True
    for group in _groups(channel_ids):
        total = 0
        for bucket, number in raw.read(*load_sql(group, begin, end, _seconds(width))):
            counts[int(bucket)] += int(number)
            total += int(number)
        complete = complete and total < MAX_COUNTED
    return _load(counts, begin, end, width, complete)


def count(
    instants: Iterable[datetime],
    begin: datetime,
    end: datetime,
    width: timedelta,
    *,
    complete: bool,
) -> TimelineLoad:
    """Count given times in the same way."""
    counts = Tally(int(instant.timestamp()) // _seconds(width) for instant in instants)
    return _load(counts, begin, end, width, complete)


def upcoming(channel_ids: Sequence[int], now: datetime, spans: Sequence[timedelta]) -> list[int]:
    """Return how many messages are due within each of ``spans`` from now, the longest last."""
    totals = [0] * len(spans)
    sums = ", ".join(["SUM(due_at <= %s)"] * len(spans))
    ends = [raw.text(now + span) for span in spans]
    for group in _groups(channel_ids):
        sql = (
            f"SELECT {sums} FROM (SELECT due_at FROM {TABLE}{BY_INDEX} "
            f"WHERE channel_id IN ({raw.listed(group)}) AND due_at > %s AND due_at <= %s "
            "LIMIT %s) AS slice"
        )
        (row,) = raw.read(sql, [*ends, raw.text(now), ends[-1], MAX_COUNTED])
        totals = [total + int(count or 0) for total, count in zip(totals, row, strict=True)]
    return totals


def ahead_sql(
    channel_ids: Sequence[int],
    begin: datetime,
    end: datetime,
    most: int,
    after: TimelinePosition | None,
) -> tuple[str, list[Any]]:
    """Read one short range per channel, or two after a position: first the rest of its time."""
    terms: list[str] = []
    values: list[Any] = []
    for channel_id in channel_ids:
        if after is not None:
            terms.append(_range(channel_id, "due_at = %s AND id > %s", most))
            values += [raw.text(after.due_at), after.id]
        bound = "due_at >= %s" if after is None else "due_at > %s"
        terms.append(_range(channel_id, f"{bound} AND due_at < %s", most))
        values += [raw.text(after.due_at if after else begin), raw.text(end)]
    return dialect.union(terms), values


def load_sql(
    channel_ids: Sequence[int], begin: datetime, end: datetime, width_s: int
) -> tuple[str, list[Any]]:
    """Read a limited number of times from the index alone, and count them by span."""
    sql = (
        f"SELECT {dialect.span('due_at', width_s)}, COUNT(*) "
        f"FROM (SELECT due_at FROM {TABLE}{BY_INDEX} "
        f"WHERE channel_id IN ({raw.listed(channel_ids)}) AND due_at >= %s AND due_at < %s "
        f"{'ORDER BY due_at ' if len(channel_ids) == 1 else ''}LIMIT %s) AS slice GROUP BY 1"
    )
    return sql, [raw.text(begin), raw.text(end), MAX_COUNTED]


def _load(
    counts: Mapping[int, int], begin: datetime, end: datetime, width: timedelta, complete: bool
) -> TimelineLoad:
    width_s = _seconds(width)
    first = int(begin.timestamp()) // width_s
    last = -(-math.ceil(end.timestamp()) // width_s)
    return TimelineLoad(
        begins=datetime.fromtimestamp(first * width_s, UTC),
        width=width,
        counts=[counts.get(bucket, 0) for bucket in range(first, max(last, first + 1))],
        complete=complete,
    )


def _seconds(width: timedelta) -> int:
    return int(width.total_seconds())


def _range(channel_id: int, where: str, most: int) -> str:
    return (
        f"SELECT id, CAST(due_at AS CHAR) AS due_at FROM {TABLE}{BY_INDEX} "
        f"WHERE channel_id = {channel_id:d} AND {where} ORDER BY {TABLE}.due_at, id LIMIT {most:d}"
    )


def _groups(channel_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(channel_ids), CHANNELS_PER_QUERY):
        yield channel_ids[start : start + CHANNELS_PER_QUERY]
