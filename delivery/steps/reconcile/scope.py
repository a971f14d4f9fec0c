"""The rows that a reconciliation reads, and the settings of consumers, in one snapshot."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connection

from channels_app.conf import conf
from channels_app.models import Channel, Consumer, DirectoryVersion, raw
from channels_app.rules import filters, ids
from delivery.rules.reconciliation import Place


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
class KeyRange:
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
    def place(self) -> Place:
        """Return the place of findings about it."""
        return Place(self.channel_id, self.id)

    def wants(self, event_type: str) -> bool:
        """Whether its filter matches this event type."""
        return filters.matches(self.event_types, event_type)


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
        number = DirectoryVersion.current()
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
        return ids.first_id_at(int((changed_at + self._grace).timestamp() * 1000))


def through(index: str) -> str:
    """Return the SQL after a table's name that forces an index."""
    return f" FORCE INDEX ({index})" if connection.vendor == "mysql" else f" INDEXED BY {index}"
