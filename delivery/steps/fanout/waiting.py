"""Waiting: the accepted messages that a fan-out finds, and those of them that are nobody else's."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from channels_app.models import DirectoryVersion, Message, raw

SelectPayloads: TypeAlias = Callable[[Iterable[int]], raw.Statement]
"""Makes a query about messages."""
MESSAGES = Message._meta.db_table
MAX_SEEN = 256
"""From so many messages on a look does not read all that wait."""
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
    """As `MessageScan.first` has them."""
    is_all: bool
    locked: list[Accepted]
    """Those of them that are ours."""
    number: int
    """The directory's, read behind the locks."""
    along: list[tuple[Any, ...]]


class MessageScan(NamedTuple):
    """What to look for: up to ``limit`` messages."""

    limit: int
    condition: str = ""
    values: tuple[str, ...] = ()

    def first(self) -> tuple[list[int], bool]:
        """Ids of what waits, oldest first, and whether these are all that wait.

        When there is more than ``limit``, priority decides; where this look cannot tell, because
        priorities differ or `MAX_SEEN` are not all, it finds nothing (`ranked`).
        """
        return self._cut(raw.read(*self._select_payloads()))

    def ranked(self, passed: int, *, oldest_first: bool) -> tuple[list[int], bool]:
        """Of a backlog the ids that come behind the ``passed`` first ones, oldest first, and
        whether all that waits has one priority.

        One short range for each priority level, as in a claim; worth it only for a backlog.
        """
        most = passed + self.limit
        sql = raw.union(
            f"SELECT id, priority FROM {MESSAGES} WHERE state = %s AND priority = {level:d}"
            f"{self.condition} ORDER BY id LIMIT {most:d}"
            for level in range(10)
        )
        rows = raw.read(sql, [Message.State.ACCEPTED.value, *self.values] * 10)
        rows.sort(key=None if oldest_first else lambda row: (-row[1], row[0]))
        is_alike = len({priority for _, priority in rows}) < 2
        return sorted(found for found, _ in rows[passed:most]), is_alike

    def with_notified(
        self, notified: Iterable[int], select_payloads: SelectPayloads | None
    ) -> Found:
        """What waits and what of it is ours; of few what is asked along, too.

        For use inside a transaction. One round trip where `first` and `lock` take two, the
        number a third and ``select_payloads`` a fourth; one or two more if more messages wait.
        """
        ids = sorted(notified)[: self.limit]
        more = [select_payloads(ids)] if select_payloads and len(ids) <= FEW else []
        # The look comes behind the locks: what was accepted before one of those is in it.
        rows, looked, version, *along = raw.read_all(
            [_locking(ids), self._select_payloads(), (DirectoryVersion.CURRENT, []), *more]
        )
        waiting, is_all = self._cut(looked)
        locked, number = _accepted(rows), DirectoryVersion.of(version)
        if not is_all:
            chosen = set(waiting)
            locked = [it for it in locked if it.id in chosen]
        if others := sorted(set(waiting).difference(ids)):
            locked = sorted([*locked, *lock(others)])
            number = DirectoryVersion.current()  # of those, consumers may know that came later
        return Found(waiting, is_all, locked, number, *(along or [[]]))

    def _select_payloads(self) -> raw.Statement:
        # In the order of the index, so that it ends at the limit.
        sql = f"SELECT id, priority FROM {MESSAGES} WHERE state = %s{self.condition}"
        values = [Message.State.ACCEPTED.value, *self.values, MAX_SEEN]
        return f"{sql} ORDER BY priority, id LIMIT %s", values

    def _cut(self, rows: Sequence[tuple[Any, ...]]) -> tuple[list[int], bool]:
        ids = sorted(found for found, _ in rows)
        if len(ids) <= self.limit and len(ids) < MAX_SEEN:
            return ids, True
        if len(ids) >= MAX_SEEN or rows[0][1] != rows[-1][1]:
            return [], False
        return ids[: self.limit], False


def of_channel(channel_id: int) -> tuple[list[int], bool]:
    """Ids of what waits in one channel, oldest first, and whether these are all.

    Reads `MAX_SEEN` rows twice at most, whatever waits: of a backlog the newest of the channel.
    """
    accepted = Message.State.ACCEPTED.value
    rows = raw.read(
        f"SELECT id, channel_id FROM {MESSAGES} WHERE state = %s LIMIT {MAX_SEEN}", [accepted]
    )
    if len(rows) < MAX_SEEN:
        return sorted(found for found, owner in rows if owner == channel_id), True
    newest = raw.read(
        f"SELECT id, state FROM {MESSAGES} WHERE channel_id = %s ORDER BY id DESC LIMIT {MAX_SEEN}",
        [channel_id],
    )
    return sorted(found for found, state in newest if state == accepted), False


def are_waiting(ids: Iterable[int]) -> bool:
    """Whether one of these still waits; others may be fanning it out."""
    sql = f"SELECT 1 FROM {MESSAGES} WHERE id IN ({raw.listed(ids)}) AND state = %s LIMIT 1"
    return bool(raw.read(sql, [Message.State.ACCEPTED.value]))


def lock(ids: Iterable[int]) -> list[Accepted]:
    """Those that are still waiting and that nobody else has."""
    return _accepted(raw.read(*_locking(ids)))


def lock_alone(
    ids: Collection[int], select_payloads: SelectPayloads
) -> tuple[list[Accepted], int, list[tuple[Any, ...]]]:
    """The same, the number of the configuration behind the locks, and of few what is asked along.

    One round trip.
    """
    more = [select_payloads(ids)] if len(ids) <= FEW else []
    statements = [_locking(ids), (DirectoryVersion.CURRENT, []), *more]
    rows, version, *along = raw.read_all(statements)
    return _accepted(rows), DirectoryVersion.of(version), along[0] if along else []


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
