"""Health monitor: find changes of consumers' health, and record each once for its owners.

Whoever moves a consumer's standing writes the notices in the same transaction: of several that
look at once one wins.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import IntegrityError
from django.db.models import F, Q

from channels_app import transactions
from channels_app.models import Consumer
from channels_app.models.hints import by_index
from delivery.models import ConsumerHealth, Delivery, Notice, Standing
from delivery.rules import health_status
from delivery.rules.health_status import Facts, Kind, State
from delivery.rules.lifecycle import DeliveryState

SCAN_ROWS = 1000
"""Dead letters that one look reads, newest first: one that was made before all of these and dies
after them is not news by itself."""
OVERLAP = timedelta(seconds=30)
"""So far the clocks of processes may differ, and so long a commit may take."""
PAUSE = timedelta(minutes=1)
"""How often a consumer is looked at whose owners know of its dead letters."""

_TROUBLED = (
    (Q(state="disabled") & ~Q(standing__state=State.DISABLED.value))
    | Q(health__circuit=ConsumerHealth.Circuit.OPEN.value)
    | Q(health__failing_since__isnull=False)
    | Q(health__last_failure_at__gt=F("standing__looked_at"))
    | (Q(standing=None) & Q(health__last_failure_at__isnull=False))
)
_KNOWN = Q(standing__dead_since__isnull=False) | (
    Q(standing__isnull=False) & ~Q(standing__state=State.HEALTHY.value)
)


class _Transitions(NamedTuple):
    """What one look came to. Without values there is nothing to be written."""

    notices: Sequence[tuple[Kind, str]]
    """With a sentence each."""
    values: dict[str, Any]
    """Of the standing."""


def watch(now: datetime) -> Iterator[int]:
    """Look at each consumer that may be in trouble or out of it; how many notices each made."""
    rows = Consumer.objects.exclude(state=Consumer.State.RETIRED).filter(_TROUBLED | _KNOWN)
    for consumer in rows.select_related("health", "standing").order_by("id"):
        yield _scan(consumer, now)


def _scan(consumer: Consumer, now: datetime) -> int:
    known = Standing.of(consumer)
    old = State(known.state)
    new = health_status.judge(old, known.since, _facts(consumer), now)
    notices, values = _dead_letters(consumer, known, now)
    if new is not old:
        values |= {"state": new.value, "since": now}
    if new is State.DISABLED:
        notices = []  # "disabled" says it all
    if kind := health_status.told(old, new):
        notices = [(kind, _reason(consumer, kind)), *notices]
    if not values:
        return 0
    try:
        return transactions.run(lambda: _keep(consumer, known, _Transitions(notices, values), now))
    except IntegrityError:
        return 0  # another process made the first standing of this consumer


def _keep(consumer: Consumer, known: Standing, news: _Transitions, now: datetime) -> int:
    return Notice.note(consumer, news.notices, now) if known.move(news.values) else 0


def _facts(consumer: Consumer) -> Facts:
    health: ConsumerHealth | None = getattr(consumer, "health", None)
    if health is None:
        return Facts(consumer.state, consumer.state_changed_at)
    return Facts(
        state=consumer.state,
        active_since=consumer.state_changed_at,
        is_open=health.circuit == ConsumerHealth.Circuit.OPEN,
        consecutive_failures=health.consecutive_failures,
        failing_since=health.failing_since,
        last_success_at=health.last_success_at,
        last_failure_at=health.last_failure_at,
    )


def _dead_letters(consumer: Consumer, known: Standing, now: datetime) -> _Transitions:
    looked = {"looked_at": now - OVERLAP}
    if known.dead_since is not None:
        if now - known.looked_at < PAUSE + OVERLAP:
            return _Transitions([], {})
        over = now - known.dead_since >= health_status.DEAD_QUIET or not _newest_dead(
            consumer.id, 1
        )
        return _Transitions([], looked | ({"dead_since": None} if over else {}))
    health: ConsumerHealth | None = getattr(consumer, "health", None)
    failed_at = health.last_failure_at if health else None
    if failed_at is None or failed_at <= known.looked_at:
        return _Transitions([], {})
    died = [
        row for row in _newest_dead(consumer.id, SCAN_ROWS) if row.finished_at > known.looked_at
    ]
    if not died:
        return _Transitions([], looked)
    last = died[0]
    sentence = f"{last} is dead ({last.reason}) after {last.attempt_count} attempts"
    sentence += f"; the last one ended with {last.outcome}." if last.outcome else "."
    return _Transitions([(Kind.DEAD_LETTER, sentence)], looked | {"dead_since": now})


def _newest_dead(consumer_id: int, most: int) -> list[Any]:
    rows = by_index(Delivery.objects.filter(consumer_id=consumer_id), "delivery_list")
    return list(rows.filter(state=DeliveryState.DEAD.value).order_by("-id")[:most])


def _reason(consumer: Consumer, kind: Kind) -> str:
    health: ConsumerHealth | None = getattr(consumer, "health", None)
    if kind is Kind.DISABLED:
        return consumer.state_reason
    if health is None:
        return ""
    if kind is Kind.RECOVERED:
        at = health.last_success_at
        return f"It answered well at {at:%H:%M:%S} UTC, and has not failed since." if at else ""
    count, last = health.consecutive_failures, health.last_outcome
    return f"The last {count} attempts failed; the last one ended with {last}."
