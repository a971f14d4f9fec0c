"""Draw charts of a webhook's last day or week and of its last deliveries, from bounded reads."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Value

from channels_app.core import ids
from channels_app.database import raw
from channels_app.database.raw import by_index, dialect
from delivery.core import timing
from delivery.core.outcome import Outcome
from delivery.core.timing import DeliveryBar, DeliveryFate
from delivery.models import Attempt, Counter, Delivery

SPANS = {"24h": (24, timedelta(hours=1)), "7d": (28, timedelta(hours=6))}
"""Number of bars, and the time of each."""
SAMPLE = 40
"""Maximum deliveries read for a bar, the newest, so that the cost of a page is bounded."""
STRIP = 30
STATES = ("delivered", "dead", "queued", "in_flight")
WIDTH, HEIGHT, GAP = 960, 160, 4
TAKEN = [outcome.value for outcome in Outcome if outcome.is_success]


class Row(NamedTuple):
    """Columns read of a delivery."""

    id: int
    state: str
    attempt_count: int


class DeliveryRange(NamedTuple):
    """A consumer's deliveries in some states, within a range of keys."""

    consumer_id: int
    states: Sequence[str]
    low: int = 0
    high: int = ids.LARGEST


@dataclass(frozen=True, slots=True)
class Column:
    """A bar on the canvas."""

    bar: DeliveryBar
    x: float
    width: float
    parts: list[tuple[str, float, float]]
    """Tone, top and height."""
    p95: int | None


def bars(consumer_id: int, span: str, now: datetime) -> list[DeliveryBar]:
    """Return bars oldest first; the last one contains ``now``."""
    count, width = SPANS[span]
    states = _present(Counter.read([consumer_id])[consumer_id])
    seconds = width.total_seconds()
    end = datetime.fromtimestamp((now.timestamp() // seconds + 1) * seconds, now.tzinfo)
    spans = [(end - place * width, end - (place - 1) * width) for place in range(count, 0, -1)]
    parts = [
        DeliveryRange(consumer_id, states, ids.id_at(begin), ids.id_at(until) - 1)
        for begin, until in spans
    ]
    newest = _newest(parts, SAMPLE + 1)
    answers = _answers(row.id for rows in newest for row in rows if row.state == "delivered")
    return [
        timing.bar(begin, until, _fates(rows[:SAMPLE], answers), is_sample=len(rows) > SAMPLE)
        for (begin, until), rows in zip(spans, newest, strict=True)
    ]


def columns(bars: Sequence[DeliveryBar]) -> list[Column]:
    """Place bars on a canvas of WIDTH by HEIGHT; each part is a share of its bar's deliveries."""
    step = WIDTH / len(bars)
    top = max((bar.total for bar in bars), default=0) or 1
    drawn = []
    for place, bar in enumerate(bars):
        floor, parts = float(HEIGHT), []
        for tone, number in (
            ("good", bar.first),
            ("wait", bar.later),
            ("calm", bar.waiting),
            ("bad", bar.dead),
        ):
            if number:
                height = number / top * HEIGHT
                floor -= height
                parts.append((tone, round(floor, 1), round(height, 1)))
        drawn.append(
            Column(
                bar=bar,
                x=round(place * step + GAP / 2, 1),
                width=round(step - GAP, 1),
                parts=parts,
                p95=timing.percentile(bar.answers, 0.95),
            )
        )
    return drawn


def strips(counts: Mapping[int, Mapping[str, int]]) -> dict[int, list[dict[str, Any]]]:
    """Return ticks for each consumer's last deliveries, oldest first, given its counters."""
    parts = [DeliveryRange(consumer_id, _present(own)) for consumer_id, own in counts.items()]
    newest = _newest(parts, STRIP)
    return {part.consumer_id: _ticks(rows) for part, rows in zip(parts, newest, strict=True)}


def _ticks(rows: Sequence[Row]) -> list[dict[str, Any]]:
    pad = STRIP - len(rows)
    return [
        {"x": 4 * (pad + place), "tone": _tone(row), "state": row.state}
        for place, row in enumerate(reversed(rows))
    ]


def _tone(row: Row) -> str:
    if row.state == "delivered":
        return "good" if row.attempt_count <= 1 else "wait"
    return "bad" if row.state == "dead" else "busy"


def _present(counts: Mapping[str, int]) -> list[str]:
    return [state for state in STATES if counts[state]]


def _newest(parts: Sequence[DeliveryRange], most: int) -> list[list[Row]]:
    """Return the newest rows of each part, descending, in one query.

    The query has a short index range per state.
    """
    terms: list[str] = []
    values: list[Any] = []
    for place, part in enumerate(parts):
        deliveries = Delivery.objects.filter(
            consumer_id=part.consumer_id, id__gte=part.low, id__lte=part.high
        )
        rows = by_index(deliveries, "delivery_list").annotate(place=Value(place)).order_by("-id")
        for state in part.states:
            chosen = rows.filter(state=state).values_list("place", *Row._fields)
            sql, own = chosen[:most].query.sql_with_params()
            terms.append(sql)
            values += own
    by_place: list[list[Row]] = [[] for _ in parts]
    for place, *row in raw.read(dialect.union(terms), values) if terms else ():
        by_place[place].append(Row(*row))
    return [sorted(rows, reverse=True)[:most] for rows in by_place]


def _answers(delivery_ids: Iterable[int]) -> dict[int, int]:
    """Return the duration of each delivery's successful attempt, in milliseconds."""
    keys = list(delivery_ids)
    durations: dict[int, int] = {}
    for start in range(0, len(keys), 500):
        taken = Attempt.objects.filter(delivery_id__in=keys[start : start + 500], outcome__in=TAKEN)
        durations |= dict(taken.values_list("delivery_id", "total_ms"))
    return durations


def _fates(rows: Sequence[Row], answers: Mapping[int, int]) -> list[DeliveryFate]:
    return [DeliveryFate(row.state, row.attempt_count, answers.get(row.id)) for row in rows]
