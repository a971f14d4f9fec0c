"""Find and lock the messages that wait for their fan-out."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from channels_app.database import raw
from channels_app.database.raw import dialect
from channels_app.models import ConfigVersion, Message
from channels_app.registry.cache import config_cache

SelectPayloads: TypeAlias = Callable[[Iterable[int]], raw.Statement]
"""Builds a query for the payloads of these messages."""
MESSAGES = Message._meta.db_table
MAX_SEEN = 256
"""Rows at which a scan of waiting messages stops; the backlog is then read by priority."""
FEW = 8
"""Most messages for which payloads are read in the same round trip. With more, reading payloads of
messages that another worker has locked costs more than a second round trip."""


class WaitingMessage(NamedTuple):
    """A message to fan out, with its times as the text that its deliveries store."""

    id: int
    channel_id: int
    priority: int
    due_at: str
    expires_at: str | None
    event_type: str
    ordering_key: str
    accepted_at: str

    def is_due(self, now: str) -> bool:
        """Whether a delivery of it may be sent at ``now``."""
        # The database's clock set accepted_at, and ``now`` may be a little behind it.
        return self.due_at <= max(now, self.accepted_at) and not (
            self.expires_at and self.expires_at <= now
        )


class ScanResult(NamedTuple):
    """What one scan found, beginning with messages from wake-ups."""

    waiting: list[int]
    """Ids, as `MessageScan.first` returns them."""
    is_all: bool
    locked: list[WaitingMessage]
    """Those of the waiting messages that this transaction has locked."""
    payload_rows: list[tuple[Any, ...]]


class Ranked(NamedTuple):
    """Some messages of a backlog, chosen by priority or age."""

    ids: list[int]
    """In ascending order."""
    is_alike: bool
    """Whether all messages that were read have one priority."""
    is_all: bool
    """Whether no more messages wait."""


class MessageScan(NamedTuple):
    """A query for up to ``limit`` accepted messages."""

    limit: int
    condition: str = ""
    values: tuple[str, ...] = ()

    def first(self) -> tuple[list[int], bool]:
        """Return ids of waiting messages, oldest first, and whether these are all of them.

        With more than ``limit`` messages priority decides. Returns no ids if this query cannot
        decide, because priorities differ or `MAX_SEEN` rows were found; `ranked` then can.
        """
        return self._cut(raw.read(*self._select_waiting()))

    def ranked(self, skipped: int, *, oldest_first: bool) -> Ranked:
        """Return the messages after the first ``skipped`` ones.

        Reads one short range for each priority, as a claim does; that pays only for a backlog.
        """
        most = skipped + self.limit
        sql = dialect.union(
            f"SELECT id, priority FROM {MESSAGES} WHERE state = %s AND priority = {level:d}"
            f"{self.condition} ORDER BY id LIMIT {most + 1:d}"
            for level in range(10)
        )
        rows = raw.read(sql, [Message.State.ACCEPTED.value, *self.values] * 10)
        rows.sort(key=None if oldest_first else lambda row: (-row[1], row[0]))
        is_alike = len({priority for _, priority in rows}) < 2
        return Ranked(
            sorted([message_id for message_id, _ in rows[skipped:most]]),
            is_alike,
            len(rows) <= most,
        )

    def with_notified(
        self, notified: Iterable[int], select_payloads: SelectPayloads | None
    ) -> ScanResult:
        """Return what waits and lock what is free, with the payloads if there are few.

        For use inside a transaction. Takes one round trip where `first`, `lock`, the configuration
        version and ``select_payloads`` take four; one or two more if other messages wait as well.
        """
        ids = sorted(notified)[: self.limit]
        more = [select_payloads(ids)] if select_payloads and len(ids) <= FEW else []
        # The scan runs after the locks, so it sees each message accepted before a locked one.
        rows, scanned, version, *payload_rows = raw.read_all(
            [_locking(ids), self._select_waiting(), (ConfigVersion.CURRENT, []), *more]
        )
        waiting, is_all = self._cut(scanned)
        locked, number = _accepted(rows), ConfigVersion.of(version)
        if not is_all:
            chosen = set(waiting)
            locked = [message for message in locked if message.id in chosen]
        config_cache.refresh(number=number)
        if unnotified := sorted(set(waiting).difference(ids)):
            # This refreshes the configuration again: consumers may have registered in between.
            locked = sorted([*locked, *lock(unnotified)[0]])
        return ScanResult(waiting, is_all, locked, *(payload_rows or [[]]))

    def _select_waiting(self) -> raw.Statement:
        # Index order, so that the read ends at the limit.
        sql = f"SELECT id, priority FROM {MESSAGES} WHERE state = %s{self.condition}"
        values = [Message.State.ACCEPTED.value, *self.values, MAX_SEEN]
        return f"{sql} ORDER BY priority, id LIMIT %s", values

    def _cut(self, rows: Sequence[tuple[Any, ...]]) -> tuple[list[int], bool]:
        ids = sorted(message_id for message_id, _ in rows)
        if len(ids) <= self.limit and len(ids) < MAX_SEEN:
            return ids, True
        if len(ids) >= MAX_SEEN or rows[0][1] != rows[-1][1]:
            return [], False
        return ids[: self.limit], False


def of_channel(channel_id: int) -> tuple[list[int], bool]:
    """Return ids of waiting messages in one channel, oldest first, and whether these are all.

    Reads `MAX_SEEN` rows at most twice, however large the backlog. Of a larger one it looks only at
    the channel's newest messages.
    """
    accepted = Message.State.ACCEPTED.value
    rows = raw.read(
        f"SELECT id, channel_id FROM {MESSAGES} WHERE state = %s LIMIT {MAX_SEEN}", [accepted]
    )
    if len(rows) < MAX_SEEN:
        return sorted(message_id for message_id, owner in rows if owner == channel_id), True
    newest = raw.read(
        f"SELECT id, state FROM {MESSAGES} WHERE channel_id = %s ORDER BY id DESC LIMIT {MAX_SEEN}",
        [channel_id],
    )
    return sorted(message_id for message_id, state in newest if state == accepted), False


def are_waiting(ids: Iterable[int]) -> bool:
    """Whether one of these messages still waits; another process may be fanning it out."""
    sql = f"SELECT 1 FROM {MESSAGES} WHERE id IN ({raw.listed(ids)}) AND state = %s LIMIT 1"
    return bool(raw.read(sql, [Message.State.ACCEPTED.value]))


def lock(
    ids: Collection[int], select_payloads: SelectPayloads | None = None
) -> tuple[list[WaitingMessage], list[tuple[Any, ...]]]:
    """Lock and return the messages that still wait and that no other process has locked.

    Also returns the payloads if there are few messages. Then refreshes the configuration, so that
    it includes each consumer that registered before one of the messages was accepted, and all
    consumers are read at one point in time.
    """
    more = [select_payloads(ids)] if select_payloads and len(ids) <= FEW else []
    statements = [_locking(ids), (ConfigVersion.CURRENT, []), *more]
    rows, version, *payload_rows = raw.read_all(statements)
    config_cache.refresh(number=ConfigVersion.of(version))
    return _accepted(rows), payload_rows[0] if payload_rows else []


def read(ids: Iterable[int]) -> list[WaitingMessage]:
    """Return those of these messages that still wait, without locking them."""
    return _accepted(raw.read(*_reading(ids)))


def _accepted(rows: Iterable[tuple[object, ...]]) -> list[WaitingMessage]:
    accepted = Message.State.ACCEPTED.value
    return [WaitingMessage._make(row) for state, *row in rows if state == accepted]


def _locking(ids: Iterable[int]) -> raw.Statement:
    sql, values = _reading(ids)
    return f"{sql}{dialect.skip_locked}", values


def _reading(ids: Iterable[int]) -> raw.Statement:
    sql = (
        "SELECT state, id, channel_id, priority, CAST(due_at AS CHAR), CAST(expires_at AS CHAR), "
        "event_type, ordering_key, CAST(accepted_at AS CHAR) "
        # No condition on the state: it would make the query use the state's index.
        f"FROM {MESSAGES} WHERE id IN ({raw.listed(ids)}) ORDER BY id"
    )
    return sql, []
