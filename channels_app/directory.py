"""What every process knows of channels, consumers and keys: cached, and never stale for a second.

One row (DirectoryVersion) moves with every configuration write. A process looks at it when a
change was announced on this host, else every ``CHECK_S`` seconds, and forgets everything when it
moved.
"""

import json
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from channels_app import sealing
from channels_app.announcement import announcement
from channels_app.conf import conf
from channels_app.models import (
    ApiKey,
    Channel,
    Consumer,
    ConsumerSecret,
    DirectoryVersion,
    EventType,
    Producer,
)
from channels_app.rules import keying
from channels_app.rules.consumers import ConsumerView, Signer
from channels_app.rules.keying import Keying
from channels_app.rules.limits import Rate, within

__all__ = ["ChannelView", "ConsumerView", "Directory", "KeyView", "Signer", "directory"]

CHECK_S = 0.4
MAX_UNKNOWN = 10_000
"""Unknown key ids remembered, so that a wrong key does not cost a query each time."""


@dataclass(frozen=True, slots=True)
class ChannelView:
    """One channel with everything that accepting a message needs."""

    id: int
    slug: str
    exposure: str
    kind: str
    keying: Keying | None
    """How it makes keys for messages that bring none; None where it does not."""
    reorder_window_ms: int
    paused: bool
    encrypt_bodies: bool
    require_idempotency_key: bool
    max_body_bytes: int
    content_types: tuple[str, ...]
    idempotency_window_s: int
    max_future_days: int
    """How far ahead its messages may be scheduled."""
    retention_days: int
    dead_retention_days: int
    schemas: dict[str, Any]
    """JSON Schema by event type name, where one is set."""
    consumers: tuple[ConsumerView, ...] = field(repr=False)
    """All that are not retired."""


@dataclass(frozen=True, slots=True)
class KeyView:
    """One API key with its owner."""

    id: int
    key_id: str
    digest: str
    scopes: tuple[str, ...]
    channels: tuple[str, ...]
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    producer: Producer | None
    team_id: int | None


class Directory:
    """The cache. Threads share it; a snapshot, once built, is never changed."""

    def __init__(self) -> None:
        self._lock, self._asking = threading.RLock(), threading.Lock()
        self._number = -1
        self._checked = float("-inf")
        self._mark = (0, 0)
        self._forget()

    def _forget(self) -> None:
        self._channels: dict[str, ChannelView] | None = None
        self._ordered: dict[int, ConsumerView] = {}
        self._awaiting: frozenset[int] = frozenset()
        self._keys: dict[str, KeyView | None] = {}
        self._signers: dict[int, Signer] = {}

    def refresh(self, *, now: bool = False, number: int | None = None) -> int:
        """Look whether configuration changed; ``now`` asks even if that was a moment ago.

        Who has just read the ``number`` (``DirectoryVersion.CURRENT``) brings it, and nobody asks.
        Returns the version number that the cache stands for.
        """
        if number is not None:
            return self._learn(number)
        mark = announcement.mark()
        if not now and self._is_fresh(mark, CHECK_S):
            return self._number
        # One thread asks; the others go on with what is known as long as that is young enough.
        is_first = self._asking.acquire(blocking=False)
        if not (is_first or now) and self._is_fresh(mark, 2 * CHECK_S):
            return self._number
        try:
            number = DirectoryVersion.current()
            with self._lock:
                self._checked, self._mark = time.monotonic(), mark
                return self._learn(number)
        finally:
            if is_first:
                self._asking.release()

    def _learn(self, number: int) -> int:
        with self._lock:
            if number != self._number:
                self._forget()
                self._number = number
        return number

    def _is_fresh(self, mark: tuple[int, int], seconds: float) -> bool:
        return mark == self._mark and time.monotonic() - self._checked < seconds

    def channel(self, slug: str, *, look: bool = True) -> ChannelView | None:
        """The channel of that name, or None. Who looked a moment ago need not ``look`` again."""
        if look:
            self.refresh()
        return self._all().get(slug)

    def channels(self) -> Iterable[ChannelView]:
        """Every channel."""
        self.refresh()
        return self._all().values()

    def consumers(self) -> dict[int, ConsumerView]:
        """All that are not retired, by id."""
        return {consumer.id: consumer for view in self.channels() for consumer in view.consumers}

    def ordered(self) -> dict[int, ConsumerView]:
        """Those that keep the order of keys, by id, as known: this looks for nothing newer."""
        self._all()
        return self._ordered

    def awaiting(self) -> frozenset[int]:
        """Those that acknowledge later, by id, as known."""
        self._all()
        return self._awaiting

    def key(self, key_id: str) -> KeyView | None:
        """The API key with that id, or None."""
        self.refresh()
        with self._lock:
            if key_id in self._keys:
                return self._keys[key_id]
            if len(self._keys) > MAX_UNKNOWN:
                self._keys.clear()
            number = self._number
        view = _load_key(key_id)
        with self._lock:
            if number == self._number:
                self._keys[key_id] = view
        return view

    def signer(self, consumer_id: int) -> Signer:
        """Opened secrets and headers of one consumer."""
        self.refresh()
        with self._lock:
            known = self._signers.get(consumer_id)
            number = self._number
        if known is not None:
            return known
        signer = _load_signer(consumer_id)
        with self._lock:
            if number == self._number:
                self._signers[consumer_id] = signer
        return signer

    def _all(self) -> dict[str, ChannelView]:
        with self._lock:
            if self._channels is None:
                self._channels = load_channels()
                views = [view for it in self._channels.values() for view in it.consumers]
                self._ordered = {view.id: view for view in views if view.ordering}
                self._awaiting = frozenset(view.id for view in views if view.ack)
            return self._channels


directory = Directory()


def load_channels(**chosen: str) -> dict[str, ChannelView]:
    """Views of the channels chosen, as this transaction sees them."""
    consumers: dict[int, list[Consumer]] = {}
    for consumer in Consumer.objects.exclude(state=Consumer.State.RETIRED).order_by("id"):
        consumers.setdefault(consumer.channel_id, []).append(consumer)
    schemas: dict[int, dict[str, Any]] = {}
    for event_type in EventType.objects.filter(schema__isnull=False):
        if event_type.schema is not None:  # neither SQL's null nor JSON's
            schemas.setdefault(event_type.channel_id, {})[event_type.name] = event_type.schema
    return {
        channel.slug: _channel_view(
            channel, consumers.get(channel.id, ()), schemas.get(channel.id, {})
        )
        for channel in Channel.objects.filter(**chosen)
    }


def _channel_view(
    channel: Channel, consumers: Sequence[Consumer], schemas: dict[str, Any]
) -> ChannelView:
    defaults = conf()
    return ChannelView(
        id=channel.id,
        slug=channel.slug,
        exposure=channel.exposure,
        kind=channel.kind,
        keying=keying.of(channel.ordering, channel.ordering_key_path),
        reorder_window_ms=channel.reorder_window_ms,
        paused=channel.paused,
        encrypt_bodies=channel.encrypt_bodies,
        require_idempotency_key=channel.require_idempotency_key,
        max_body_bytes=within(channel.max_body_bytes, defaults.max_body_bytes),
        content_types=tuple(channel.content_types),
        idempotency_window_s=channel.idempotency_window_s or defaults.idempotency_window_s,
        max_future_days=within(channel.max_future_days, defaults.max_future_days),
        retention_days=channel.retention_days or defaults.retention_days,
        dead_retention_days=channel.dead_retention_days or defaults.dead_retention_days,
        schemas=schemas,
        consumers=tuple(_consumer_view(consumer, channel) for consumer in consumers),
    )


def _consumer_view(consumer: Consumer, channel: Channel) -> ConsumerView:
    defaults = conf()
    per_second, burst = consumer.rate_per_second, consumer.rate_burst
    rate = Rate(per_second=per_second, burst=burst) if per_second else None
    return ConsumerView(
        id=consumer.id,
        client_id=consumer.client_id,
        channel_id=channel.id,
        channel_slug=channel.slug,
        mode=consumer.mode,
        state=consumer.state,
        halted=channel.paused or consumer.state != Consumer.State.ACTIVE,
        url=consumer.url,
        event_types=tuple(consumer.event_types),
        timeout_ms=consumer.timeout_ms or defaults.timeout_ms,
        max_attempts=consumer.max_attempts or defaults.max_attempts,
        retry=consumer.retry if consumer.retry is not None else channel.default_retry,
        rate=rate,
        max_in_flight=consumer.max_in_flight or defaults.max_in_flight,
        team_id=consumer.team_id,
        version=consumer.version,
        ordering=consumer.ordering,
        head_of_line=consumer.head_of_line,
        ack=consumer.ack,
    )


def _load_key(key_id: str) -> KeyView | None:
    key = ApiKey.objects.select_related("producer").filter(key_id=key_id).first()
    if key is None:
        return None
    return KeyView(
        id=key.id,
        key_id=key.key_id,
        digest=key.digest,
        scopes=tuple(key.scopes),
        channels=tuple(key.channels),
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
        last_used_at=key.last_used_at,
        producer=key.producer,
        team_id=key.team_id or (key.producer.team_id if key.producer else None),
    )


def _load_signer(consumer_id: int) -> Signer:
    consumer = Consumer.objects.only("channel_id", "client_id", "headers_sealed").get(
        id=consumer_id
    )
    channel_id, client_id = consumer.channel_id, consumer.client_id
    keys: dict[str, list[tuple[bytes, datetime | None]]] = {"v1": [], "v1a": []}
    # Newest first: consumers that only look at the first signature see the current one.
    for secret in ConsumerSecret.objects.filter(consumer_id=consumer_id).order_by("-id"):
        opened = sealing.open_for_consumer(channel_id, client_id, bytes(secret.sealed))
        keys[secret.scheme].append((opened, secret.expires_at))
    sealed = bytes(consumer.headers_sealed)
    headers = json.loads(sealing.open_for_consumer(channel_id, client_id, sealed)) if sealed else {}
    return Signer(v1=tuple(keys["v1"]), v1a=tuple(keys["v1a"]), headers=tuple(headers.items()))
