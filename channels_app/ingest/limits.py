"""Enforce rates and quotas before a message is stored (S0-75).

The maintenance process counts waiting messages into a table (delivery/maintenance/quota_usage.py),
which each process reads once a second. A process adds what it has accepted itself since that count
began, so that a single process never exceeds a limit. It does not know what others have accepted
since.
"""

import threading
import time
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from django.db.models import F, FloatField, Value
from django.db.models.functions import Greatest

from channels_app import metrics
from channels_app.core.errors import OverQuota, StorageFull
from channels_app.core.rate_limits import Limit, Rate, Usage
from channels_app.database import clock
from channels_app.ingest.storage import disks
from channels_app.models import Producer, ProducerRate, QuotaUsage
from channels_app.registry.cache import config_cache
from channels_app.registry.snapshot import ChannelConfig

READ_S = 1.0
"""Seconds between two reads of the count by a process that publishes."""
PER_S = 10
"""Parts per second by which accepted messages are grouped. Messages accepted in the part in which
a count began may be counted twice until the next count."""
MAX_PARTS = 600
"""Parts that are kept separate; older ones are merged into one."""

NOTHING, ONE = Usage(), Usage(1, 0)

Owner = tuple[str, int]
"""Scope and id: of a channel or a team."""


def take_from_rate(producer: Producer | None, count: int = 1) -> float | None:
    """Count ``count`` messages against a producer's rate; None if they may be accepted.

    If not, nothing is counted, and the result is the time to wait in seconds. More messages than
    the burst are accepted if the rate is unused, which is then used up for correspondingly long.
    """
    if producer is None or not producer.rate_per_second or count < 1:
        return None
    rate = Rate(producer.rate_per_second, producer.rate_burst)
    wait = _take_from_rate(producer.id, count, rate)
    if wait is not None:
        metrics.THROTTLED.inc(count)
    return wait


class Sized(Protocol):
    """A message about to be stored."""

    @property
    def body(self) -> bytes:
        """The body; its length counts against the quota."""


class Reservation(NamedTuple):
    """Room reserved for messages that are about to be stored."""

    owners: Sequence[Owner]
    part: int
    """Number of the part of a second, since 1970."""


class Quotas:
    """What this process knows about waiting messages. Threads share it."""

    def __init__(self) -> None:
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Reset to the initial state."""
        self._read_at = float("-inf")
        self._counted_at: datetime | None = None
        self._counted: dict[Owner, Usage] = {}
        self._own: dict[Owner, _Own] = {}

    def check(self, channel: ChannelConfig, producer_id: int | None) -> None:
        """Check that one more message may wait, before its body is read.

        Raises OverQuota and StorageFull.
        """
        limits = self._limits(channel, producer_id)
        with self._lock:
            fault = self._fault(limits, ONE)
        if fault is not None:
            raise self._refusal(fault, ONE)

    def take(
        self, channel: ChannelConfig, producer_id: int | None, messages: Sequence[Sized]
    ) -> Reservation | None:
        """Reserve room for messages that are about to be stored: for all of them or none.

        Returns None if no limit applies. Raises OverQuota and StorageFull.
        """
        limits = self._limits(channel, producer_id)
        if not limits:
            return None
        usage = _usage(messages)
        held = Reservation([limit.owner for limit in limits], int(clock.now().timestamp() * PER_S))
        with self._lock:
            if (fault := self._fault(limits, usage)) is None:
                self._add(held, usage)
                return held
        raise self._refusal(fault, usage)

    def give_back(self, held: Reservation | None, messages: Sequence[Sized]) -> None:
        """Return the reserved room of messages that were not stored."""
        if held is None or not messages:
            return
        count, size = _usage(messages)
        with self._lock:
            self._add(held, Usage(-count, -size))

    def used(self, owner: Owner) -> Usage:
        """How much waits for this owner, as far as this process knows."""
        own = self._own.get(owner)
        counted = self._counted.get(owner, NOTHING)
        return Usage(counted[0] + own.messages, counted[1] + own.bytes) if own else counted

    def _limits(self, channel: ChannelConfig, producer_id: int | None) -> list[Limit]:
        try:
            disks.check()
        except StorageFull:
            metrics.REFUSED.labels("disk").inc()
            raise
        team = None if producer_id is None else config_cache.team_limit(producer_id)
        limits = [limit for limit in (channel.limit, team) if limit is not None]
        if limits and time.monotonic() - self._read_at > READ_S:
            self._read()
        return limits

    def _fault(self, limits: Sequence[Limit], usage: Usage) -> tuple[Limit, str] | None:
        for limit in limits:
            used = self.used(limit.owner)
            if excess := limit.quota.excess(used[0] + usage[0], used[1] + usage[1]):
                return limit, excess
        return None

    def _refusal(self, fault: tuple[Limit, str], usage: Usage) -> OverQuota:
        limit, excess = fault
        scope, _ = limit.owner
        metrics.REFUSED.labels(scope).inc(usage.messages)
        most, waiting, wanted = (
            getattr(amounts, excess) for amounts in (limit.quota, self.used(limit.owner), usage)
        )
        detail = (
            f"Nothing was stored: {waiting} {excess} wait in {limit.name}; the limit is {most}. "
        )
        if wanted > most:
            detail += f"{wanted} at once exceed the limit: send fewer."
        else:
            detail += "Try again when some of them are delivered."
        if scope == "channel":
            return OverQuota("channel_over_quota", detail)
        return OverQuota("team_over_quota", detail)

    def _add(self, held: Reservation, usage: Usage) -> None:
        for owner in held.owners:
            if (own := self._own.get(owner)) is None:
                own = self._own[owner] = _Own()
            own.add(held.part, usage)

    def _read(self) -> None:
        """Read the count. One thread does; the others use the previous one."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            rows = QuotaUsage.objects.exclude(messages=0, owner_id__gt=0)
            counted = {(row.scope, row.owner_id): row for row in rows}
            newest = counted.pop((QuotaUsage.Scope.ALL.value, 0), None)
            self._read_at = time.monotonic()
            if newest is None or newest.counted_at == self._counted_at:
                return
            with self._lock:
                self._counted_at = newest.counted_at
                self._counted = {owner: row.usage for owner, row in counted.items()}
                for own in self._own.values():
                    own.forget(newest.counted_at.timestamp())
                self._own = {owner: own for owner, own in self._own.items() if own.messages}
        finally:
            self._reading.release()


_quotas = Quotas()
check, take, give_back, used, forget = (
    _quotas.check,
    _quotas.take,
    _quotas.give_back,
    _quotas.used,
    _quotas.forget,
)


def _take_from_rate(producer_id: int, count: int, rate: Rate) -> float | None:
    now = clock.now().timestamp()
    # GCRA (core/rate_limits.py) as one UPDATE: a concurrent one waits for the row and sees the new
    # value.
    latest = now + rate.tolerance - (min(count, max(rate.burst, 1)) - 1) * rate.interval + 1e-6
    moved = Greatest(F("arrival_at"), Value(now, FloatField())) + Value(count * rate.interval)
    rows = ProducerRate.objects.filter(producer_id=producer_id)
    for _ in range(2):
        if rows.filter(arrival_at__lte=latest).update(arrival_at=moved):
            return None
        arrival = rows.values_list("arrival_at", flat=True).first()
        if arrival is not None:
            return max(arrival - latest, 0.001)
        ProducerRate.objects.get_or_create(producer_id=producer_id)
    return 1.0


class _Own:
    """What this process accepted for one owner since the last count began, by part of a second."""

    def __init__(self) -> None:
        self.messages = self.bytes = 0
        self._by_part: dict[int, Usage] = {}

    def add(self, part: int, usage: Usage) -> None:
        self.messages += usage.messages
        self.bytes += usage.bytes
        self._by_part[part] = self._by_part.get(part, NOTHING) + usage
        if len(self._by_part) > MAX_PARTS:
            # The count is not updated any more: merge the two oldest parts.
            first, second = sorted(self._by_part)[:2]
            self._by_part[second] += self._by_part.pop(first)

    def forget(self, before: float) -> None:
        """Drop the parts that ended before that Unix time in seconds."""
        end = before * PER_S
        self._by_part = {at: usage for at, usage in self._by_part.items() if at + 1 > end}
        self.messages, self.bytes = sum(self._by_part.values(), Usage())


def _usage(messages: Sequence[Sized]) -> Usage:
    return Usage(len(messages), sum([len(message.body) for message in messages]))
