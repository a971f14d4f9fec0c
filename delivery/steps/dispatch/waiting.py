"""Waiting: the accepted messages that a fan-out finds, and those of them that are nobody else's."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from channels_app.models import DirectoryVersion, Message, raw

Asking: TypeAlias = Callable[[Iterable[int]], raw.Statement]
"""Makes a query about messages."""
MESSAGES = Message._meta.db_table
FEW = 8
"""Of so many messages at most something is asked along: asking later costs more than to have read
of some that nobody may take now."""


class Accepted(NamedTuple):
    """A message to fan out; instants as text, as they go into its deliveries."""

    id: int
    channel_id: int
    priority: int
    due_at: str
    expires_at: str | None
    event_type: str
    ordering_key: str
    accepted_at: str

    def is_due(self, now: str) -> bool:
        """Whether a delivery of it may go at ``now``."""
        # Accepted means accepted in the past, by the database's clock; ours is a little behind.
        return self.due_at <= max(now, self.accepted_at) and not (
            self.expires_at and self.expires_at <= now
        )


class Found(NamedTuple):
    """What a look found where somebody had told of some."""

    waiting: list[int]
    locked: list[Accepted]
    """Those of them that are ours."""
    number: int
    """The directory's, read behind the locks."""
    along: list[tuple[Any, ...]]


class Look(NamedTuple):
    """What to look for: up to ``limit`` messages, oldest first."""

    limit: int
    condition: str = ""
    values: tuple[str, ...] = ()

    def behind(self, message_id: int) -> list[int]:
        """Ids behind that one."""
        return [found for (found,) in raw.read(*self._asking(message_id))]

    def with_told(self, told: Iterable[int], asking: Asking | None) -> Found:
        """What waits and what of it is ours; of few what is asked along, too.

        For use inside a transaction. One round trip where `behind` and `lock` take two, the
        number a third and ``asking`` a fourth; if more wait than were told of, one or two more.
        """
        ids = sorted(told)[: self.limit]
        more = [asking(ids)] if asking and len(ids) <= FEW else []
        # The look comes behind the locks: what was accepted before one of those is in it.
        rows, looked, version, *along = raw.read_all(
            [_locking(ids), self._asking(0), (DirectoryVersion.CURRENT, []), *more]
        )
        waiting = [found for (found,) in looked]
        locked, number = _accepted(rows), DirectoryVersion.of(version)
        if others := sorted(set(waiting).difference(ids)):
            locked = sorted([*locked, *lock(others)])
            number = DirectoryVersion.current()  # of those, consumers may know that came later
        if len(waiting) == self.limit:
            locked = [it for it in locked if it.id <= waiting[-1]]  # older ones may be in between
        return Found(waiting, locked, number, *(along or [[]]))

    def _asking(self, message_id: int) -> raw.Statement:
        sql = f"SELECT id FROM {MESSAGES} WHERE state = %s{self.condition} AND id > %s"
        values = [Message.State.ACCEPTED.value, *self.values, message_id, self.limit]
        return f"{sql} ORDER BY id LIMIT %s", values


def lock(ids: Iterable[int]) -> list[Accepted]:
    """Those that are still waiting and that nobody else has."""
    return _accepted(raw.read(*_locking(ids)))


def _locking(ids: Iterable[int]) -> raw.Statement:
    sql = (
        "SELECT state, id, channel_id, priority, CAST(due_at AS CHAR), CAST(expires_at AS CHAR), "
        "event_type, ordering_key, CAST(accepted_at AS CHAR) "
        # Not by state as well: that would lead through its index again.
        f"FROM {MESSAGES} WHERE id IN ({raw.listed(ids)}) ORDER BY id{raw.skip_locked()}"
    )
    return sql, []


def _accepted(rows: Iterable[tuple[object, ...]]) -> list[Accepted]:
    accepted = Message.State.ACCEPTED.value
    return [Accepted._make(row) for state, *row in rows if state == accepted]
