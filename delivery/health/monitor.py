"""Find changes of consumers' health, and record each once for the owners.

The process that updates a consumer's health status creates the notifications in the same
transaction; of several processes that check at once, one succeeds.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import IntegrityError
from django.db.models import F, Q

from channels_app.database import transactions
from channels_app.database.raw import by_index
from channels_app.models import Consumer
from delivery.core import health_status
from delivery.core.health_status import Facts, NotificationKind, State
from delivery.core.lifecycle import DeliveryState
from delivery.models import ConsumerHealth, Delivery, HealthStatus, Notification

SCAN_ROWS = 1000
"""Dead letters that one check reads, newest first. A delivery created before all of these that dies
after them is not reported on its own."""
OVERLAP = timedelta(minutes=2)
"""Covers differences between the processes' clocks and the time for a commit, which fails after a
minute (database.transactions)."""
PAUSE = timedelta(minutes=1)
"""Interval of checks for a consumer whose owners know of its dead letters."""

_TROUBLED = (
    (Q(state="disabled") & ~Q(health_status__state=State.DISABLED.value))
    | Q(health__circuit=ConsumerHealth.Circuit.OPEN.value)
    | Q(health__failing_since__isnull=False)
    | Q(health__last_failure_at__gt=F("health_status__looked_at"))
    | (Q(health_status=None) & Q(health__last_failure_at__isnull=False))
)
_KNOWN = Q(health_status__dead_since__isnull=False) | (
    Q(health_status__isnull=False) & ~Q(health_status__state=State.HEALTHY.value)
)


class _Transitions(NamedTuple):
    """The result of one check. Without ``values`` there is nothing to write."""

    notices: Sequence[tuple[NotificationKind, str]]
    """Kinds of notifications, each with a sentence."""
    values: dict[str, Any]
    """New values of the health status."""


def watch(now: datetime) -> Iterator[int]:
    """Check consumers that may have begun or ceased to fail; yield the notifications of each."""
    rows = Consumer.objects.exclude(state=Consumer.State.RETIRED).filter(_TROUBLED | _KNOWN)
    for consumer in rows.select_related("health", "health_status").order_by("id"):
        yield _scan(consumer, now)


def _scan(consumer: Consumer, now: datetime) -> int:
    status = HealthStatus.of(consumer)
    old = State(status.state)
    new = health_status.judge(old, status.since, _facts(consumer), now)
    notices, values = _dead_letters(consumer, status, now)
    if new is not old:
        values |= {"state": new.value, "since": now}
    if new is State.DISABLED:
        notices = []  # "disabled" covers them
    if kind := health_status.notification_kind(old, new):
        notices = [(kind, _reason(consumer, kind)), *notices]
    if not values:
        return 0
    try:
        return transactions.run(lambda: _keep(consumer, status, _Transitions(notices, values), now))
    except IntegrityError:
        return 0  # another process created the first health status of this consumer


def _keep(consumer: Consumer, status: HealthStatus, news: _Transitions, now: datetime) -> int:
    return Notification.note(consumer, news.notices, now) if status.move(news.values) else 0


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


def _dead_letters(consumer: Consumer, status: HealthStatus, now: datetime) -> _Transitions:
    looked = {"looked_at": now - OVERLAP}
    if status.dead_since is not None:
        if now - status.looked_at < PAUSE + OVERLAP:
            return _Transitions([], {})
        over = now - status.dead_since >= health_status.DEAD_QUIET or not _newest_dead(
            consumer.id, 1
        )
        return _Transitions([], looked | ({"dead_since": None} if over else {}))
    health: ConsumerHealth | None = getattr(consumer, "health", None)
    failed_at = health.last_failure_at if health else None
    if failed_at is None or failed_at <= status.looked_at:
        return _Transitions([], {})
    died = [
        row for row in _newest_dead(consumer.id, SCAN_ROWS) if row.finished_at > status.looked_at
    ]
    if not died:
        return _Transitions([], looked)
    last = died[0]
    sentence = f"{last} is dead ({last.reason}) after {last.attempt_count} attempts"
    sentence += f"; the last one ended with {last.outcome}." if last.outcome else "."
    return _Transitions([(NotificationKind.DEAD_LETTER, sentence)], looked | {"dead_since": now})


def _newest_dead(consumer_id: int, most: int) -> list[Any]:
    rows = by_index(Delivery.objects.filter(consumer_id=consumer_id), "delivery_list")
    return list(rows.filter(state=DeliveryState.DEAD.value).order_by("-id")[:most])


def _reason(consumer: Consumer, kind: NotificationKind) -> str:
    health: ConsumerHealth | None = getattr(consumer, "health", None)
    if kind is NotificationKind.DISABLED:
        return consumer.state_reason
    if health is None:
        return ""
    if kind is NotificationKind.RECOVERED:
        at = health.last_success_at
        return (
            f"It answered successfully at {at:%H:%M:%S} UTC, and has not failed since."
            if at
            else ""
        )
    count, last = health.consecutive_failures, health.last_outcome
    return f"The last {count} attempts failed; the last one ended with {last}."
