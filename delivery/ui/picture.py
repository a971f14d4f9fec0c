"""Picture: a webhook's last day or week, and its last deliveries, out of bounded reads."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from typing import Any

from channels_app.models import raw
from channels_app.models.hints import by_index
from delivery.models import Attempt, Counter, Delivery
from delivery.rules import picture
from delivery.rules.outcome import Outcome
from delivery.rules.picture import Bar, Fate
from delivery.steps.replay.filters import id_at

SPANS = {"24h": (24, timedelta(hours=1)), "7d": (28, timedelta(hours=6))}
"""Bars, and how much time each stands for."""
SAMPLE = 40
"""Deliveries looked at for a bar, its newest: a page costs the same however much was sent."""
STRIP = 30
LAST = f"""
    SELECT * FROM (
        SELECT id, consumer_id, state, attempt_count FROM {Delivery._meta.db_table}
        WHERE consumer_id = %s AND state = %s ORDER BY id DESC LIMIT %s
    ) AS part{{}}
"""  # noqa: S608 - our own table
STATES = ("delivered", "dead", "queued", "in_flight")
WIDTH, HEIGHT, GAP = 960, 160, 4
TAKEN = [outcome.value for outcome in Outcome if outcome.is_success]


@dataclass(frozen=True, slots=True)
class Column:
    """A bar as it is drawn."""

    bar: Bar
    x: float
    width: float
    parts: list[tuple[str, float, float]]
    """Tone, top and height."""
    p95: int | None


def bars(consumer_id: int, span: str, now: datetime) -> list[Bar]:
    """Oldest first, the last one ending with the span that ``now`` is in."""
    count, width = SPANS[span]
    states = _present(Counter.read([consumer_id])[consumer_id])
    seconds = width.total_seconds()
    end = datetime.fromtimestamp((now.timestamp() // seconds + 1) * seconds, now.tzinfo)
    found = []
    for place in range(count, 0, -1):
        begin, until = end - place * width, end - (place - 1) * width
        rows = _newest(consumer_id, states, id_at(begin), id_at(until) - 1, SAMPLE + 1)
        found.append((begin, until, rows))
    answers = _answers([row for _, _, rows in found for row in rows if row["state"] == "delivered"])
    return [
        picture.bar(begin, until, _fates(rows[:SAMPLE], answers), is_sample=len(rows) > SAMPLE)
        for begin, until, rows in found
    ]


def columns(found: Sequence[Bar]) -> list[Column]:
    """The bars on a canvas of WIDTH by HEIGHT; each part is a share of its bar's deliveries."""
    step = WIDTH / len(found)
    top = max((bar.total for bar in found), default=0) or 1
    drawn = []
    for place, bar in enumerate(found):
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
                p95=picture.percentile(bar.answers, 0.95),
            )
        )
    return drawn


def strips(counts: Mapping[int, Mapping[str, int]]) -> dict[int, list[dict[str, Any]]]:
    """The last deliveries of each consumer, oldest first, as ticks; ``counts`` are their counters.

    One query for all of them: a short index range for each state that is not empty.
    """
    pairs = [(key, state) for key, own in counts.items() for state in _present(own)]
    union = " UNION ALL ".join(LAST.format(place) for place in range(len(pairs)))
    rows = defaultdict(list)
    if pairs:
        for row in raw.read(union, [part for pair in pairs for part in (*pair, STRIP)]):
            rows[row[1]].append(row)
    return {key: _ticks(sorted(rows[key], reverse=True)[:STRIP]) for key in counts}


def _ticks(newest: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    pad = STRIP - len(newest)
    return [
        {"x": 4 * (pad + place), "tone": _tone(state, attempts), "state": state}
        for place, (_, _, state, attempts) in enumerate(reversed(newest))
    ]


def _tone(state: str, attempts: int) -> str:
    if state == "delivered":
        return "good" if attempts <= 1 else "wait"
    return "bad" if state == "dead" else "busy"


def _present(counts: Mapping[str, int]) -> list[str]:
    return [state for state in STATES if counts[state]]


def _newest(
    consumer_id: int, states: Sequence[str], low: int, high: int, most: int
) -> list[dict[str, Any]]:
    mine = by_index(Delivery.objects.filter(consumer_id=consumer_id), "delivery_list")
    parts: list[Iterable[Any]] = [
        mine.filter(state=state, id__gte=low, id__lte=high)
        .order_by("-id")
        .values("id", "state", "attempt_count")[:most]
        for state in states
    ]
    return list(islice(merge(*parts, key=lambda row: row["id"], reverse=True), most))


def _answers(rows: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """How long the attempt took that was taken, by delivery."""
    keys = [row["id"] for row in rows]
    found: dict[int, int] = {}
    for start in range(0, len(keys), 500):
        taken = Attempt.objects.filter(delivery_id__in=keys[start : start + 500], outcome__in=TAKEN)
        found |= dict(taken.values_list("delivery_id", "total_ms"))
    return found


def _fates(rows: Sequence[Mapping[str, Any]], answers: Mapping[int, int]) -> list[Fate]:
    return [Fate(row["state"], row["attempt_count"], answers.get(row["id"])) for row in rows]
