"""Define what one reconciliation covers: a range of messages, some consumers, the configuration.

A reconciliation reads it range by range, each in a snapshot of its own.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from channels_app.conf import conf
from channels_app.core import ids, names
from channels_app.database import raw
from channels_app.models import Channel, ConfigVersion, Consumer, Message
from delivery.core.reconciliation import MismatchPlace
from delivery.models import Delivery

SLICE = 2000
"""Messages, and deliveries, that one query reads."""
_MESSAGE_RANGE = f"""
    SELECT MIN(id), MAX(id), COUNT(*) FROM (
        SELECT id FROM {Message._meta.db_table} WHERE id BETWEEN %s AND %s ORDER BY id LIMIT %s
    ) AS slice
"""
_DELIVERY_RANGE = f"""
    SELECT MIN(id), MAX(id), COUNT(*) FROM (
        SELECT message_id AS id FROM {Delivery._meta.db_table}
        WHERE message_id BETWEEN %s AND %s ORDER BY message_id LIMIT %s
    ) AS slice
"""
"""Read separately: a message may have thousands of them, and they may exist without it."""
NEWEST = f"""
    SELECT COALESCE((SELECT MAX(id) FROM {Message._meta.db_table}), 0),
        COALESCE((SELECT MAX(message_id) FROM {Delivery._meta.db_table}), 0)
"""


@dataclass(frozen=True, slots=True)
class Scope:
    """A range of messages by their keys, which contain the time of creation."""

    first: int
    last: int
    before: datetime
    """Messages and deliveries that have waited since before this time are late."""
    channel_ids: frozenset[int] | None = None
    """None: all."""
    consumer_ids: frozenset[int] | None = None

    def narrowed(self, alias: str, *, to_consumers: bool = True) -> str:
        """Return the end of a WHERE clause that excludes other channels and consumers."""
        sql = ""
        if self.channel_ids is not None:
            sql += f" AND {alias}.channel_id IN ({raw.listed(self.channel_ids or {0})})"
        if to_consumers and self.consumer_ids is not None:
            sql += f" AND {alias}.consumer_id IN ({raw.listed(self.consumer_ids or {0})})"
        return sql

    def has(self, consumer_id: int) -> bool:
        """Whether this consumer is covered."""
        return self.consumer_ids is None or consumer_id in self.consumer_ids


@dataclass(frozen=True, slots=True)
class MessageRange:
    """Keys of messages from ``first`` to ``last``, both inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ReconciledConsumer:
    """A consumer as the reconciliation uses it."""

    id: int
    client_id: str
    channel_id: int
    event_types: tuple[str, ...]
    is_retired: bool
    is_pushed: bool
    since: int
    """The first key whose message was fanned out with exactly these settings."""

    @property
    def place(self) -> MismatchPlace:
        """Return the place of findings about it."""
        return MismatchPlace(self.channel_id, self.id)

    def wants(self, event_type: str) -> bool:
        """Whether its filter matches this event type."""
        return names.matches(self.event_types, event_type)


class ReconciledChannel(NamedTuple):
    """A channel as the reconciliation uses it."""

    slug: str
    since: int
    """The first key created with its current settings."""
    window: timedelta
    """How long it remembers idempotency keys."""
    is_queue: bool
    """Whether each message goes to only one of its consumers."""


class ConfigSnapshot:
    """Channels and consumers, read again in each snapshot in which they have changed.

    Includes retired consumers, whose history remains.
    """

    def __init__(self, grace: timedelta) -> None:
        self._grace = grace
        self._number = -1
        self.channels: dict[int, ReconciledChannel] = {}
        self.consumers: dict[int, ReconciledConsumer] = {}

    def refresh(self) -> None:
        """Read changed settings. Call this inside each snapshot."""
        number = ConfigVersion.current()
        if number == self._number:
            return
        self._number = number
        names = ("id", "slug", "updated_at", "idempotency_window_s", "kind")
        channels = Channel.objects.values_list(*names)
        usual = conf().idempotency_window_s
        self.channels = {
            channel_id: ReconciledChannel(
                *(slug, self._settled(at), timedelta(seconds=window_s or usual)),
                is_queue=kind == Channel.Kind.QUEUE,
            )
            for channel_id, slug, at, window_s, kind in channels
        }
        self.consumers = {row.id: self._consumer(row) for row in Consumer.objects.order_by("id")}

    def _consumer(self, row: Consumer) -> ReconciledConsumer:
        return ReconciledConsumer(
            id=row.id,
            client_id=row.client_id,
            channel_id=row.channel_id,
            event_types=tuple(row.event_types),
            is_retired=row.state == Consumer.State.RETIRED,
            is_pushed=row.mode == Consumer.Mode.PUSH,
            since=self._settled(row.updated_at),
        )

    def slug(self, channel_id: int) -> str:
        """Return a channel's name; empty for none, and for a deleted one."""
        channel = self.channels.get(channel_id)
        return channel.slug if channel else ""

    def windows(self) -> set[timedelta]:
        """Return the distinct idempotency windows of all channels."""
        return {channel.window for channel in self.channels.values()}

    def _settled(self, changed_at: datetime) -> int:
        # Hosts' clocks differ, and a message that is being fanned out while its consumer changes
        # may use the old or the new settings.
        return ids.id_at(changed_at + self._grace)


def newest() -> int:
    """Return the highest existing key: later rows are left to the next reconciliation."""
    message_id, owner_id = raw.read(NEWEST)[0]
    return max(int(message_id), int(owner_id))


def next_key_range(scope: Scope, first: int) -> MessageRange:
    """Return the range that begins at ``first``: up to SLICE messages and SLICE deliveries.

    A message with more deliveries than that is a range by itself.
    """
    _, last_message, messages = raw.read(_MESSAGE_RANGE, [first, scope.last, SLICE])[0]
    first_owner, last_owner, deliveries = raw.read(_DELIVERY_RANGE, [first, scope.last, SLICE])[0]
    last = scope.last
    if messages == SLICE:
        last = last_message
    if deliveries == SLICE:
        # The last message may have more deliveries than were read.
        whole = last_owner if first_owner == last_owner else last_owner - 1
        last = min(last, whole)
    return MessageRange(first, last)
