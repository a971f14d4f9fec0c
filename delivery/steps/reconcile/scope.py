"""Scope: the rows that a reconciliation reads, and who wanted what, in one snapshot."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connection, transaction

from channels_app.conf import conf
from channels_app.models import Channel, Consumer, DirectoryVersion, raw
from channels_app.rules import filters, ids
from delivery.rules.reconciliation import Place


@dataclass(frozen=True, slots=True)
class Scope:
    """Messages by their keys, which carry the instant at which they were made."""

    first: int
    last: int
    before: datetime
    """What waits since before this instant waits too long."""
    channel_ids: frozenset[int] | None = None
    """None: all."""
    consumer_ids: frozenset[int] | None = None

    def narrowed(self, alias: str, *, to_consumers: bool = True) -> str:
        """The end of a WHERE that leaves other channels and consumers out."""
        sql = ""
        if self.channel_ids is not None:
            sql += f" AND {alias}.channel_id IN ({raw.listed(self.channel_ids or {0})})"
        if to_consumers and self.consumer_ids is not None:
            sql += f" AND {alias}.consumer_id IN ({raw.listed(self.consumer_ids or {0})})"
        return sql

    def has(self, consumer_id: int) -> bool:
        """Whether this consumer is looked at."""
        return self.consumer_ids is None or consumer_id in self.consumer_ids


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys of messages from ``first`` to ``last``, both included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Party:
    """A consumer as an audit knows it."""

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
        """Where a finding about it belongs."""
        return Place(self.channel_id, self.id)

    def wants(self, event_type: str) -> bool:
        """Whether its filter lets this event type through."""
        return filters.matches(self.event_types, event_type)


class Lane(NamedTuple):
    """A channel as an audit knows it."""

    slug: str
    since: int
    """The first key that was made when it was as it is now."""
    window: timedelta
    """For how long it remembers idempotency keys."""
    is_queue: bool
    """Whether one consumer gets each message, whichever it is, and not all of them."""


class Parties:
    """Channels and consumers, read anew in each snapshot in which they have changed.

    Retired consumers are among them: their history stays.
    """

    def __init__(self, grace: timedelta) -> None:
        self._grace = grace
        self._number = -1
        self.lanes: dict[int, Lane] = {}
        self.by_id: dict[int, Party] = {}

    def refresh(self) -> None:
        """To be called inside each snapshot."""
        number = DirectoryVersion.current()
        if number == self._number:
            return
        self._number = number
        names = ("id", "slug", "updated_at", "idempotency_window_s", "kind")
        channels = Channel.objects.values_list(*names)
        usual = conf().idempotency_window_s
        self.lanes = {
            channel_id: Lane(
                *(slug, self._settled(at), timedelta(seconds=window_s or usual)),
                is_queue=kind == Channel.Kind.QUEUE,
            )
            for channel_id, slug, at, window_s, kind in channels
        }
        self.by_id = {row.id: self._party(row) for row in Consumer.objects.order_by("id")}

    def _party(self, row: Consumer) -> Party:
        return Party(
            id=row.id,
            client_id=row.client_id,
            channel_id=row.channel_id,
            event_types=tuple(row.event_types),
            is_retired=row.state == Consumer.State.RETIRED,
            is_pushed=row.mode == Consumer.Mode.PUSH,
            since=self._settled(row.updated_at),
        )

    def slug(self, channel_id: int) -> str:
        """A channel's name; empty for none, and for one that is gone."""
        lane = self.lanes.get(channel_id)
        return lane.slug if lane else ""

    def windows(self) -> set[timedelta]:
        """For how long channels remember idempotency keys: as many as there are different ones."""
        return {lane.window for lane in self.lanes.values()}

    def _settled(self, changed_at: datetime) -> int:
        # Clocks of hosts differ, and a message that is being fanned out while its consumer changes
        # may go either way.
        return ids.first_id_at(int((changed_at + self._grace).timestamp() * 1000))


def through(index: str) -> str:
    """What follows a table's name where MariaDB must take this way to its rows."""
    return f" FORCE INDEX ({index})" if connection.vendor == "mysql" else f" INDEXED BY {index}"


@contextmanager
def snapshot() -> Iterator[None]:
    """One instant for all that is read inside: what the broker changes meanwhile is not seen.

    Locks nothing and waits for nobody. It must be short: the database keeps for it what others
    change.
    """
    if connection.in_atomic_block:
        yield  # the caller's transaction
        return
    if connection.vendor == "mysql":
        with connection.cursor() as cursor:
            # For the next transaction alone; the installation's own is READ COMMITTED.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with transaction.atomic():
            yield
        return
    # Not Django's way to begin, which takes SQLite's one lock for writing (settings.py).
    with connection.cursor() as cursor:
        cursor.execute("BEGIN DEFERRED")
        try:
            yield
        finally:
            cursor.execute("ROLLBACK")
