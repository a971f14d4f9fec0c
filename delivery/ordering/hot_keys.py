"""Find ordering keys that get more messages than can be sent in order, and estimate their pace.

This does not slow deliveries down: it reads the keys as they are stored anyway.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.db import IntegrityError
from django.db.models import Q
from django.utils.text import Truncator

from channels_app.database import raw, transactions
from channels_app.database.raw import by_index
from channels_app.models import Consumer
from channels_app.registry.cache import config_cache
from delivery.conf import conf
from delivery.core import health_status
from delivery.core.health_status import NotificationKind, State
from delivery.core.lifecycle import DeliveryState
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Delivery, HealthStatus, Notification, OrderingKey

SLICE = 5000
"""Keys that one query reads."""
SHOWN = 5
"""Consumers that are listed by name."""
KEY_SHOWN = 80
"""Characters of a key that are shown in a sentence."""
KEYS = OrderingKey._meta.db_table
END = f"SELECT MAX(id) FROM (SELECT id FROM {KEYS} WHERE id > %s ORDER BY id LIMIT %s) AS slice"
HOT = f"""
    SELECT consumer_id, ordering_key, head_id, CAST(head_at AS CHAR), waiting_count FROM {KEYS}
    WHERE id > %s AND id <= %s AND waiting_count > 0 AND paused_at IS NULL
    AND (waiting_count >= %s OR head_at <= %s)
"""
NEVER = datetime(1970, 1, 1, tzinfo=UTC)
MAX_COUNT = 2**31 - 1
SAMPLE = 20
"""Deliveries by which the pace of a key is estimated, newest first."""
MIN_INTERVAL = timedelta(milliseconds=1)


class Hot(NamedTuple):
    """A hot key, from its key."""

    consumer_id: int
    ordering_key: str
    head_id: int | None
    head_at: str
    waiting: int


@dataclass(frozen=True, slots=True)
class KeyBacklog:
    """The hot keys of one consumer at the last scan."""

    consumer: Consumer
    key: str
    """The key with the most waiting deliveries."""
    waiting: int
    count: int

    @property
    def name(self) -> str:
        """Channel and consumer, as in the search of lists."""
        return f"{self.consumer.channel.slug}/{self.consumer.client_id}"


def scan(now: datetime) -> Iterator[int]:
    """Check each key, and notify the owners of keys that became hot; yield the notifications.

    A key is hot if more than HOOKSTATION_HOT_KEY_WAITING deliveries wait behind its head, or if its
    head is older than HOOKSTATION_HOT_KEY_AFTER_S while deliveries wait (S3-32). Keys that wait as
    intended are not: paused keys, paused consumers, a head that is due later. Failing consumers are
    reported as such instead.
    """
    config_cache.refresh(now=True)
    hot: dict[int, list[Hot]] = {}
    after = -1
    while (last := raw.read(END, [after, SLICE])[0][0]) is not None:
        for key in _hot(after, last, now):
            hot.setdefault(key.consumer_id, []).append(key)
        after = last
        yield 0
    recorded = Q(health_status__hot_count__gt=0) | Q(health_status__hot_since__isnull=False)
    rows = Consumer.objects.filter(recorded | Q(id__in=hot)).select_related("health_status")
    for consumer in rows.order_by("id"):
        yield _update(consumer, hot.get(consumer.id, []), now)


def backlogs(most: int = SHOWN) -> list[KeyBacklog]:
    """Return consumers with hot keys, those with most waiting deliveries first."""
    rows = HealthStatus.objects.filter(hot_count__gt=0).select_related("consumer__channel")
    return [
        KeyBacklog(row.consumer, row.hot_key, row.hot_waiting, row.hot_count)
        for row in rows.order_by("-hot_waiting", "consumer_id")[:most]
    ]


def totals() -> tuple[int, int]:
    """Return the number of hot keys, and the deliveries waiting for the longest of them."""
    rows = HealthStatus.objects.filter(hot_count__gt=0).values_list("hot_count", "hot_waiting")
    counts = list(rows)
    return sum(count for count, _ in counts), max((waiting for _, waiting in counts), default=0)


def most_per_second(consumer_id: int) -> float | None:
    """Return the rate at which one key's deliveries can follow each other; None without data.

    A delivery holds its key for the response time, and if the consumer acknowledges later until it
    has done so; only then the next one is sent.
    """
    rows = Delivery.objects.filter(consumer_id=consumer_id, state=DeliveryState.DELIVERED.value)
    newest = by_index(rows, "delivery_list").order_by("-id")
    ended = dict(newest.values_list("id", "finished_at")[:SAMPLE])
    taken = Attempt.objects.filter(
        delivery_id__in=list(ended),
        outcome__in=[outcome.value for outcome in Outcome if outcome.is_success],
    ).order_by("delivery_id", "number")
    began = dict(taken.values_list("delivery_id", "started_at"))
    held = [at - began[key] for key, at in ended.items() if at is not None and key in began]
    if not held:
        return None
    busy = sum((max(interval, MIN_INTERVAL) for interval in held), timedelta())
    return len(held) / busy.total_seconds()


def _hot(after: int, last: int, now: datetime) -> list[Hot]:
    """Return the hot keys in a slice of keys."""
    most = conf().hot_key_waiting or MAX_COUNT
    since = now - conf().hot_key_after if conf().hot_key_after else NEVER
    going = {key for key, consumer in config_cache.ordered().items() if not consumer.halted}
    keys = [Hot._make(row) for row in raw.read(HOT, [after, last, most, raw.text(since)])]
    keys = [key for key in keys if key.consumer_id in going]
    later = _due_later([key.head_id for key in keys if key.waiting < most and key.head_id], now)
    return [key for key in keys if key.waiting >= most or key.head_id not in later]


def _due_later(head_ids: Sequence[int], now: datetime) -> set[int]:
    """Return heads that a producer scheduled for later: their keys wait as intended."""
    if not head_ids:
        return set()
    rows = Delivery.objects.filter(id__in=head_ids, attempt_count=0, due_at__gt=now)
    return set(rows.values_list("id", flat=True))


def _update(consumer: Consumer, keys: Sequence[Hot], now: datetime) -> int:
    status = HealthStatus.of(consumer)
    if status.state != State.HEALTHY:
        keys = []
    worst = max(keys, key=lambda key: (key.waiting, key.ordering_key), default=None)
    values: dict[str, object] = {
        "hot_count": len(keys),
        "hot_key": worst.ordering_key if worst else "",
        "hot_waiting": worst.waiting if worst else 0,
        "hot_since": status.hot_since,
    }
    news: list[tuple[NotificationKind, str]] = []
    if worst and status.hot_since is None:
        news, values["hot_since"] = (
            [(NotificationKind.HOT_KEY, _sentence(worst, len(keys) - 1))],
            now,
        )
    elif not worst and status.hot_since and now - status.hot_since >= health_status.HOT_QUIET:
        values["hot_since"] = None
    if all(getattr(status, name) == value for name, value in values.items()):
        return 0

    def write() -> int:
        return Notification.note(consumer, news, now) if status.move(values) else 0

    try:
        return transactions.run(write)
    except IntegrityError:
        return 0  # another process created the first health status of this consumer


def _sentence(worst: Hot, other_count: int) -> str:
    key = Truncator(worst.ordering_key).chars(KEY_SHOWN)
    since = raw.instant(worst.head_at)
    wait = "delivery waits" if worst.waiting == 1 else "deliveries wait"
    text = (
        f"{worst.waiting:,} {wait} behind the head of the key {key}, which has not changed since "
        f"{since:%H:%M:%S} UTC"
    )
    return f"{text}; {other_count:,} more keys are hot." if other_count else f"{text}."
