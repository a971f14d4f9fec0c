"""Aggregate traffic by minute and hour, in short slices shortly behind the present, and read it.

Keys contain the millisecond in which a row was created, so each slice is a range of a primary key.
That costs the database a few microseconds per attempt and message, and does not delay them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import zip_longest

from django.db.models import Q, Sum

from channels_app.core import ids
from channels_app.database import raw, transactions
from channels_app.database.raw import dialect
from channels_app.models import Message
from delivery.core.outcome import Outcome
from delivery.core.timing import BOUNDS_MS, BUCKETS
from delivery.models import Attempt, Delivery, Traffic, TrafficMark
from delivery.models.traffic import ALL, HOUR_S, MINUTE_S

SLICE = 5000
"""Attempts, and messages, that one slice reads."""
LAG = timedelta(seconds=10)
"""By then transactions are committed. Rows that are committed later are in no chart."""
LOOKBACK = timedelta(hours=1)
"""How far back the first slice begins, also after a long pause."""
BATCH_SIZE = 200
"""Rows changed by one statement, whose cost grows with the square of their number."""
AMOUNTS = ("accepted", "delivered", "failed", "dead", "latency")
RETENTION = {MINUTE_S: timedelta(days=2), HOUR_S: timedelta(days=15)}
"""How long spans of each length are kept."""

MADE = f">> {ids.TIME_SHIFT}"
MINUTE_MS = MINUTE_S * 1000
PASSED = f"""
    SELECT consumer_id, outcome, died, minute, place, COUNT(*), MAX(id) FROM (
        SELECT attempt.id AS id, delivery.consumer_id AS consumer_id, attempt.outcome AS outcome,
            delivery.state = 'dead' AND delivery.attempt_count = attempt.number AS died,
            (attempt.id {MADE}) - (attempt.id {MADE}) %% {MINUTE_MS} AS minute,
            CASE {
    " ".join(
        f"WHEN attempt.id {MADE} <= (delivery.message_id {MADE}) + {bound} THEN {place}"
        for place, bound in enumerate(BOUNDS_MS)
    )
} ELSE {len(BOUNDS_MS)} END AS place
        FROM {Attempt._meta.db_table} AS attempt
        {dialect.join_in_order} {Delivery._meta.db_table} AS delivery
            ON delivery.id = attempt.delivery_id
        WHERE attempt.id > %s AND attempt.id < %s ORDER BY attempt.id LIMIT %s
    ) AS slice GROUP BY consumer_id, outcome, died, minute, place
"""
ACCEPTED = f"""
    SELECT minute, COUNT(*), MAX(id) FROM (
        SELECT id, (id {MADE}) - (id {MADE}) %% {MINUTE_MS} AS minute
        FROM {Message._meta.db_table} WHERE id > %s AND id < %s ORDER BY id LIMIT %s
    ) AS slice GROUP BY minute
"""
Key = tuple[int, int, datetime]
"""Consumer, length in seconds, start."""


@dataclass(slots=True)
class Span:
    """Traffic in one time span; all zero without any."""

    begins_at: datetime
    accepted: int = 0
    delivered: int = 0
    failed: int = 0
    dead: int = 0
    latency: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    """Deliveries by the time since their message was accepted (core/timing)."""

    def add(self, other: "Span | Traffic") -> None:
        """Add the traffic of a part of this span."""
        self.accepted += other.accepted
        self.delivered += other.delivered
        self.failed += other.failed
        self.dead += other.dead
        # A row with no traffic has no buckets.
        both = zip_longest(self.latency, other.latency, fillvalue=0)
        self.latency = [own + added for own, added in both]


@dataclass(frozen=True, slots=True)
class Record:
    """One consumer's results in some hours."""

    consumer_id: int
    delivered: int
    failed: int
    dead: int


@dataclass(slots=True)
class _Slice:
    mark: TrafficMark
    """Where the next slice begins."""
    spans: dict[Key, Span] = field(default_factory=dict)
    most: int = 0
    """Number of attempts or of messages read, whichever is larger."""

    def span(self, consumer_id: int, length_s: int, minute_ms: int) -> Span:
        unix_s = (minute_ms + ids.EPOCH_MS) // 1000
        begins_at = datetime.fromtimestamp(unix_s - unix_s % length_s, UTC)
        return self.spans.setdefault((consumer_id, length_s, begins_at), Span(begins_at))


def fold(now: datetime) -> Iterator[int]:
    """Continue slice by slice until `LAG` before ``now``; yields zeros."""
    while (count := _go_on(now)) is not None:
        yield 0
        if count < SLICE:
            return


def forget(now: datetime) -> int:
    """Delete spans too old for any chart; return how many."""
    old = Q()
    for length_s, kept in RETENTION.items():
        old |= Q(span_s=length_s, begins_at__lt=now - kept)
    return Traffic.objects.filter(old).delete()[0]


def series(now: datetime, *, hours: int, step_s: int, consumer_id: int = ALL) -> list[Span]:
    """Return the last ``hours`` in steps, oldest first, including the current step.

    Without a consumer it is the sum over all, by the minute or coarser; only that has ``accepted``.
    For one consumer it is by the hour.
    """
    length_s = HOUR_S if consumer_id != ALL or step_s >= HOUR_S else MINUTE_S
    end = int(now.timestamp()) // step_s + 1
    first = end - hours * 3600 // step_s
    spans = [Span(datetime.fromtimestamp(place * step_s, UTC)) for place in range(first, end)]
    rows = Traffic.objects.filter(
        consumer_id=consumer_id, span_s=length_s, begins_at__gte=spans[0].begins_at
    )
    for row in rows:
        place = int(row.begins_at.timestamp()) // step_s - first
        if place < len(spans):
            spans[place].add(row)
    return spans


def worst(now: datetime, *, hours: int, most: int) -> list[Record]:
    """Return the consumers with most failed attempts in the last hours, worst first.

    Counts are by whole hours: the hour at the start of the range is included.
    """
    since = (now - timedelta(hours=hours)).replace(minute=0, second=0, microsecond=0)
    rows = (
        Traffic.objects.filter(span_s=HOUR_S, begins_at__gte=since)
        .exclude(consumer_id=ALL)
        .values_list("consumer_id")
        .annotate(done=Sum("delivered"), failures=Sum("failed"), lost=Sum("dead"))
        .filter(Q(failures__gt=0) | Q(lost__gt=0))
        .order_by("-failures", "-lost", "consumer_id")[:most]
    )
    return [Record(*map(int, row)) for row in rows]


def _go_on(now: datetime) -> int | None:
    """Aggregate one slice; return its length, or None when nothing is left to do."""
    mark, _ = TrafficMark.objects.get_or_create(id=1)
    seen = _scan(mark, now)
    # If another maintenance process has counted this already, it has moved the mark.
    if not seen.most or not transactions.run(lambda: _write(mark, seen)):
        return None
    return seen.most


def _scan(mark: TrafficMark, now: datetime) -> _Slice:
    first = ids.id_at(now - LOOKBACK)
    end = ids.id_at(now - LAG)
    attempts = raw.read(PASSED, [max(mark.attempt_id, first), end, SLICE])
    accepted = raw.read(ACCEPTED, [max(mark.message_id, first), end, SLICE])
    seen = _Slice(TrafficMark(id=1, message_id=mark.message_id, attempt_id=mark.attempt_id))
    for consumer_id, outcome, died, minute, place, count, last in attempts:
        for span in (
            seen.span(ALL, MINUTE_S, minute),
            seen.span(ALL, HOUR_S, minute),
            seen.span(consumer_id, HOUR_S, minute),
        ):
            span.dead += count if died else 0
            if Outcome(outcome).is_success:
                span.delivered += count
                span.latency[place] += count
            elif Outcome(outcome).charged:
                span.failed += count
        seen.mark.attempt_id = max(seen.mark.attempt_id, last)
    for minute, count, last in accepted:
        for length_s in (MINUTE_S, HOUR_S):
            seen.span(ALL, length_s, minute).accepted += count
        seen.mark.message_id = max(seen.mark.message_id, last)
    seen.most = max(sum(row[5] for row in attempts), sum(row[1] for row in accepted))
    return seen


def _write(mark: TrafficMark, seen: _Slice) -> bool:
    """Store a slice; return False if another process was faster.

    May be called again after a deadlock, so ``seen`` is not changed.
    """
    held = TrafficMark.objects.filter(id=1, message_id=mark.message_id, attempt_id=mark.attempt_id)
    after = {"message_id": seen.mark.message_id, "attempt_id": seen.mark.attempt_id}
    if not held.update(**after):
        return False
    existing = _existing(seen.spans)
    rows = {
        key: existing.get(key) or Traffic(consumer_id=key[0], span_s=key[1], begins_at=key[2])
        for key in seen.spans
    }
    for key, row in rows.items():
        whole = Span(row.begins_at)
        whole.add(row)
        whole.add(seen.spans[key])
        for name in AMOUNTS:
            setattr(row, name, getattr(whole, name))
    Traffic.objects.bulk_create([row for key, row in rows.items() if key not in existing])
    Traffic.objects.bulk_update(existing.values(), AMOUNTS, batch_size=BATCH_SIZE)
    return True


def _existing(keys: Iterable[Key]) -> dict[Key, Traffic]:
    """Return the rows that exist already."""
    consumers = defaultdict(set)
    for consumer_id, length_s, begins_at in keys:
        consumers[length_s, begins_at].add(consumer_id)
    return {
        (row.consumer_id, length_s, begins_at): row
        for (length_s, begins_at), consumer_ids in consumers.items()
        for row in Traffic.objects.filter(
            consumer_id__in=consumer_ids, span_s=length_s, begins_at=begins_at
        )
    }
