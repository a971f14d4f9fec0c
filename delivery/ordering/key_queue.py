"""Keep the queue of each ordering key as deliveries open and finish.

Call these functions inside the transaction that creates, queues or finishes deliveries, so that
rows and keys agree. The guarantee: a delivery of a key is sent only after the one before it was
delivered or abandoned (S3-33). Deliveries behind the head have a ``due_at`` far in the future, so
claims skip them at no cost, however many there are (S3-07).

Pumps that fan out concurrently keep the order: a pump leaves a message for later if another pump
holds an earlier one of the same key.

A key is locked before it is read. Adding a delivery behind a head and removing that head therefore
wait for each other.
"""

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from channels_app import failpoints
from channels_app.database import clock, raw
from channels_app.database.raw import dialect
from channels_app.models import Message
from channels_app.registry.cache import config_cache
from delivery import metrics
from delivery.core.lifecycle import DeliveryState
from delivery.core.ordering import BEHIND, acceptance, key_number
from delivery.models import Delivery, OrderingKey, OrderingWaiter

KEYS, WAITERS, DELIVERIES = (
    model._meta.db_table for model in (OrderingKey, OrderingWaiter, Delivery)
)
MESSAGES = Message._meta.db_table
NEVER = raw.text(BEHIND)
NEW = raw.Insert(
    OrderingKey,
    numbers=("id", "consumer_id", "head_id", "last_place", "waiting_count"),
    values=("ordering_key", "head_at"),
)
WAITING = raw.Insert(
    OrderingWaiter, numbers=("delivery_id", "key_number", "place"), values=("due_at",)
)
NEXT = f"""
    SELECT (
        SELECT delivery_id FROM {WAITERS} AS waiter
        WHERE waiter.key_number = key_row.id AND waiter.place > key_row.head_place
        ORDER BY waiter.key_number, waiter.place LIMIT 1
    ) FROM {KEYS} AS key_row WHERE key_row.id IN ({{key_rows}})
"""
"""Reads one index entry per key, however many deliveries wait. The order names all of the index's
columns, because MySQL takes an outer row's value for no constant, and would sort."""
MAX_ROWS = 500
"""Waiting deliveries that one transaction checks."""
MAX_KEYS = 50
"""Keys checked at a time, so that each gets a useful share of `MAX_ROWS`."""
FIRST = raw.Insert(
    OrderingWaiter, numbers=("delivery_id", "key_number", "place"), values=("due_at",)
)


class Locked(NamedTuple):
    """A key that is locked until the end of the transaction."""

    id: int
    consumer_id: int
    head_id: int | None
    last_place: int
    waiting_count: int
    is_paused: int


class NewEntry(NamedTuple):
    """A delivery that is about to be opened."""

    delivery_id: int
    consumer_id: int
    ordering_key: str
    due_at: str


@dataclass(frozen=True, slots=True)
class Entered:
    """Which deliveries must wait, and the statements that store it."""

    behind: frozenset[int] = frozenset()
    """Deliveries whose ``due_at`` must be core.ordering.BEHIND."""
    statements: list[raw.Statement] = field(default_factory=list)


class ClosingEntry(NamedTuple):
    """A delivery that is no longer open."""

    delivery_id: int
    consumer_id: int
    ordering_key: str
    is_dead: bool = False


class FannedOutMessage(Protocol):
    """A message that is being fanned out."""

    @property
    def id(self) -> int: ...
    @property
    def channel_id(self) -> int: ...
    @property
    def ordering_key(self) -> str: ...
    @property
    def due_at(self) -> str: ...
    @property
    def accepted_at(self) -> str: ...


M = TypeVar("M", bound=FannedOutMessage)


def enter(entrants: Iterable[NewEntry], now: datetime) -> Entered:
    """Append deliveries to their keys in the order given.

    The first delivery of an empty key is its head. A dead head that is queued again keeps its
    place. The caller executes the statements. If another transaction creates the same key they
    collide, and the caller must run its transaction again.
    """
    by_key: dict[int, list[NewEntry]] = {}
    for entrant in entrants:
        key = key_number(entrant.consumer_id, entrant.ordering_key)
        by_key.setdefault(key, []).append(entrant)
    if not by_key:
        return Entered()
    key_rows = lock(by_key)
    new: list[raw.Row] = []
    waiters: list[raw.Row] = []
    longer: dict[int, list[int]] = {}
    unblocked: list[int] = []
    for key, entries in sorted(by_key.items()):
        key_row, last = key_rows.get(key), 0
        if key_row is None:
            head, *behind = entries
            numbers = key, head.consumer_id, head.delivery_id, len(behind), len(behind)
            new.append((numbers, (head.ordering_key, raw.text(now))))
        else:
            behind, last = (
                [entry for entry in entries if entry.delivery_id != key_row.head_id],
                key_row.last_place,
            )
            longer.setdefault(len(behind), []).append(key)
            unblocked += [key] * (len(behind) < len(entries))
        places = enumerate(behind, last + 1)
        waiters += [((entry.delivery_id, key, place), (entry.due_at,)) for place, entry in places]
    statements = [*NEW.statements(new), *WAITING.statements(waiters)]
    statements += [lengthen(count, keys) for count, keys in longer.items() if count]
    if unblocked:
        statements.append(_unblocking(unblocked, now))
    return Entered(frozenset(numbers[0] for numbers, _ in waiters), statements)


def enter_rows(delivery_ids: Collection[int]) -> None:
    """Append deliveries that have just been queued; waiting ones keep their due times."""
    config_cache.refresh()
    rows = keyed(delivery_ids, "message_id, CAST(due_at AS CHAR)")
    rows.sort(key=lambda row: row[3])
    entered = enter((NewEntry(row[0], row[1], row[2], row[4]) for row in rows), clock.now())
    if not entered.statements:
        return
    # Delete entries left from before: their places are no longer valid.
    raw.execute(
        f"DELETE FROM {WAITERS} WHERE delivery_id IN ({raw.listed(row[0] for row in rows)})"
    )
    raw.execute_all(entered.statements)
    if entered.behind:
        behind = raw.listed(sorted(entered.behind))
        raw.execute(f"UPDATE {DELIVERIES} SET due_at = %s WHERE id IN ({behind})", [NEVER])


def in_turn(messages: list[M], seen_ids: Sequence[int]) -> list[M]:
    """Return the messages that may be fanned out now.

    ``seen_ids`` are all ids that were found, including those that another process holds.
    """
    channels = {consumer.channel_id for consumer in config_cache.ordered().values()}
    if not channels:
        return messages
    keyed = {
        message.id
        for message in messages
        if message.ordering_key and message.channel_id in channels
    }
    if not keyed or not (held_ids := set(seen_ids) - {message.id for message in messages}):
        return messages
    # Read after the attempt to lock them: a message fanned out by now already has its place.
    rows = raw.read(
        f"SELECT channel_id, ordering_key FROM {MESSAGES} "
        f"WHERE id IN ({raw.listed(sorted(held_ids))}) AND state = %s",
        [Message.State.ACCEPTED.value],
    )
    busy = {(channel_id, key) for channel_id, key in rows if key}
    return [
        message
        for message in messages
        if message.id not in keyed or (message.channel_id, message.ordering_key) not in busy
    ]


def new_deliveries(rows: Iterable[tuple[int, FannedOutMessage, int]]) -> Entered:
    """Append new deliveries (id, message, consumer id) to their keys."""
    ordered = config_cache.ordered()
    if not ordered:
        return Entered()
    entrants = [row for row in rows if row[2] in ordered and row[1].ordering_key]
    entrants.sort(key=lambda row: acceptance(row[1].id, row[1].accepted_at))
    return enter(
        (
            NewEntry(key, owner, message.ordering_key, message.due_at)
            for key, message, owner in entrants
        ),
        clock.now(),
    )


def ending(leavers: Iterable[ClosingEntry]) -> raw.Statement | None:
    """Return the statement that deletes keys in which nothing waits behind these heads.

    It needs no read before. Its row count is the number of deleted keys; `leave` handles the
    others. Keys with dead heads are excluded because they may have to block, and paused keys
    remain.
    """
    heads = {
        key_number(leaver.consumer_id, leaver.ordering_key): leaver.delivery_id
        for leaver in leavers
        if not leaver.is_dead
    }
    if not heads:
        return None
    return (
        f"DELETE FROM {KEYS} WHERE id IN ({raw.listed(sorted(heads))}) "
        f"AND head_id IN ({raw.listed(heads.values())}) "
        "AND waiting_count = 0 AND paused_at IS NULL",
        [],
    )


def leave(leavers: Iterable[ClosingEntry], now: datetime, *, ended: int = 0) -> dict[int, datetime]:
    """Remove finished deliveries from their keys and release the next ones.

    ``ended`` is how many of their keys `ending` has deleted already. Returns when each consumer's
    released delivery is due. Deliveries in no key are ignored.
    """
    by_id = {leaver.delivery_id: leaver for leaver in leavers}
    key_number_of = {
        key: key_number(leaver.consumer_id, leaver.ordering_key) for key, leaver in by_id.items()
    }
    if len(theirs := set(key_number_of.values())) == ended:
        return {}
    key_rows = lock(theirs)
    heads = {key_row.head_id for key_row in key_rows.values()}
    waiting = {
        key for key, key_row in key_number_of.items() if key_row in key_rows and key not in heads
    }
    if waiting:
        key_rows = _drop(waiting, key_rows)
    free = [key_row for key_row in key_rows.values() if key_row.head_id in by_id]
    if not free:
        return {}
    stands = is_stalled()
    dead = {leaver.delivery_id for leaver in by_id.values() if leaver.is_dead}
    blocked = [
        key_row.id for key_row in free if key_row.head_id in dead and key_row.consumer_id in stands
    ]
    block(blocked, now)
    return advance([key_row for key_row in free if key_row.id not in blocked], now)


def advance(key_rows: Sequence[Locked], now: datetime) -> dict[int, datetime]:
    """Make the next entry of locked keys without a head their head; delete empty keys.

    Paused keys stay without a head. Returns when each consumer's released delivery is due.
    """
    if not key_rows:
        return {}
    paused = [key_row.id for key_row in key_rows if key_row.is_paused]
    if paused:
        raw.execute(
            f"UPDATE {KEYS} SET head_id = NULL, head_at = %s, blocked_at = NULL "
            f"WHERE id IN ({raw.listed(paused)})",
            [raw.text(now)],
        )
    going = {key_row.id: key_row for key_row in key_rows if not key_row.is_paused}
    following = _next(key for key, key_row in going.items() if key_row.waiting_count)
    ended = going.keys() - {key for key, *_ in following}
    if ended:
        raw.execute(f"DELETE FROM {KEYS} WHERE id IN ({raw.listed(sorted(ended))})")
    if not following:
        failpoints.reach("in_key_release")
        return {}
    instant = raw.text(now)
    dues = {delivery_id: max(due_at, instant) for _, delivery_id, _, due_at in following}
    raw.execute_all([*releasing(dues), _heads(following, instant)])
    failpoints.reach("in_key_release")
    metrics.ORDERING_WAIT.observe_all(
        [(now - raw.instant(due_at)).total_seconds() for *_, due_at in following]
    )
    due: dict[int, datetime] = {}
    for key, delivery_id, *_ in following:
        at, consumer_id = raw.instant(dues[delivery_id]), going[key].consumer_id
        due[consumer_id] = min(due.get(consumer_id, at), at)
    return due


def releasing(dues: dict[int, str]) -> Iterable[raw.Statement]:
    """Return statements that make waiting deliveries due, by id, unless they were cancelled."""
    by_instant: dict[str, list[int]] = {}
    for delivery_id, due_at in dues.items():
        by_instant.setdefault(due_at, []).append(delivery_id)
    for due_at, keys in by_instant.items():
        yield (
            f"UPDATE {DELIVERIES} SET due_at = %s, version = version + 1 "
            f"WHERE id IN ({raw.listed(keys)}) AND state = %s AND due_at = %s",
            [due_at, DeliveryState.QUEUED.value, NEVER],
        )
    yield f"DELETE FROM {WAITERS} WHERE delivery_id IN ({raw.listed(dues)})", []


def block(key_rows: Sequence[int], now: datetime) -> None:
    """Block locked keys behind a dead head."""
    if key_rows:
        raw.execute(
            f"UPDATE {KEYS} SET blocked_at = %s WHERE id IN ({raw.listed(key_rows)})",
            [raw.text(now)],
        )


def is_stalled() -> set[int]:
    """Return consumers whose keys wait behind a dead delivery until a person decides (S3-14)."""
    return {
        consumer.id
        for consumer in config_cache.ordered().values()
        if consumer.head_of_line == "block"
    }


def step_back(heads: Mapping[int, int], now: datetime) -> set[int]:
    """Put heads of paused keys back to wait, and return those; ``heads`` maps them to keys.

    The caller has locked the deliveries, and sets them to queued before its transaction ends. Their
    keys then have no head until they are resumed.
    """
    key_rows = lock(heads.values())
    back = {
        key: key_row.id
        for key, key_row in ((key, key_rows.get(key_row)) for key, key_row in heads.items())
        if key_row is not None and key_row.is_paused and key_row.head_id == key
    }
    if not back:
        return set()
    keys, ids = raw.listed(sorted(back.values())), raw.listed(sorted(back))
    places = dict(raw.read(f"SELECT id, head_place FROM {KEYS} WHERE id IN ({keys})"))
    dues = dict(raw.read(f"SELECT id, CAST(due_at AS CHAR) FROM {DELIVERIES} WHERE id IN ({ids})"))
    raw.execute_all(
        [
            (f"DELETE FROM {WAITERS} WHERE delivery_id IN ({ids})", []),
            *FIRST.statements(
                ((key, key_row, places[key_row]), (dues[key],)) for key, key_row in back.items()
            ),
            (
                f"UPDATE {KEYS} SET head_id = NULL, head_place = head_place - 1, head_at = %s, "
                f"blocked_at = NULL WHERE id IN ({keys})",
                [raw.text(now)],
            ),
            lengthen(1, list(back.values()), 0),
            (f"UPDATE {DELIVERIES} SET due_at = %s WHERE id IN ({ids})", [NEVER]),
        ]
    )
    return set(back)


def expired_behind(
    heads: Iterable[tuple[int, str]], columns: str, instant: str
) -> list[tuple[Any, ...]]:
    """Lock deliveries behind these heads that expired by ``instant``, and return their ``columns``.

    ``heads`` are consumers and keys. Skips deliveries that other transactions hold; those farther
    back are left to the next claim. The caller finishes them and removes them from their keys.
    """
    ordered = config_cache.ordered()
    keys = sorted({key_number(*head) for head in heads if head[1] and head[0] in ordered})[
        :MAX_KEYS
    ]
    if not keys:
        return []
    crowded = raw.read(
        f"SELECT id, head_place FROM {KEYS} WHERE id IN ({raw.listed(keys)}) AND waiting_count > 0"
    )
    if not crowded:
        return []
    share = MAX_ROWS // len(crowded)
    waiting = dialect.union(
        f"SELECT delivery_id FROM {WAITERS} WHERE key_number = {key:d} "
        f"AND place > {place:d} ORDER BY place LIMIT {share:d}"
        for key, place in crowded
    )
    if not (waiting_rows := raw.read(waiting)):
        return []
    ids = raw.listed(delivery_id for (delivery_id,) in waiting_rows)
    return raw.read(
        f"SELECT {columns} FROM {DELIVERIES} WHERE id IN ({ids}) AND state = %s "
        f"AND due_at = %s AND expires_at <= %s{dialect.skip_locked}",
        [DeliveryState.QUEUED.value, NEVER, instant],
    )


def paused(keys: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    """Return those of the keys (consumer, ordering key) that a person has paused."""
    ordered = config_cache.ordered()
    by_key = {key_number(*key): key for key in keys if key[1] and key[0] in ordered}
    if not by_key:
        return set()
    rows = raw.read(
        f"SELECT id FROM {KEYS} WHERE id IN ({raw.listed(sorted(by_key))}) "
        "AND paused_at IS NOT NULL"
    )
    return {by_key[key] for (key,) in rows}


def lock(key_rows: Iterable[int]) -> dict[int, Locked]:
    """Lock the keys that exist until the end of the transaction; return them by id."""
    keys = sorted(key_rows)
    if not keys:
        return {}
    rows = raw.read(
        "SELECT id, consumer_id, head_id, last_place, waiting_count, paused_at IS NOT NULL "
        f"FROM {KEYS} WHERE id IN ({raw.listed(keys)}) ORDER BY id{dialect.locked}"
    )
    return {row[0]: Locked._make(row) for row in rows}


def lengthen(count: int, keys: Sequence[int], places: int | None = None) -> raw.Statement:
    more = count if places is None else places
    return (
        f"UPDATE {KEYS} SET waiting_count = waiting_count + {count:d}, "
        f"last_place = last_place + {more:d} WHERE id IN ({raw.listed(keys)})",
        [],
    )


def keyed(delivery_ids: Collection[int], more: str = "") -> list[tuple[Any, ...]]:
    """Return id, consumer and key of those deliveries that belong into keys."""
    ordered = config_cache.ordered()
    if not ordered or not delivery_ids:
        return []
    columns = "id, consumer_id, ordering_key" + (f", {more}" if more else "")
    return raw.read(
        f"SELECT {columns} FROM {DELIVERIES} WHERE id IN ({raw.listed(delivery_ids)}) "
        f"AND ordering_key <> '' AND consumer_id IN ({raw.listed(ordered)})"
    )


def _unblocking(keys: Sequence[int], now: datetime) -> raw.Statement:
    return (
        f"UPDATE {KEYS} SET blocked_at = NULL, head_at = %s WHERE id IN ({raw.listed(keys)})",
        [raw.text(now)],
    )


def _next(key_rows: Iterable[int]) -> list[tuple[int, int, int, str]]:
    """Return key, delivery, place and due time of the first waiting entry of each key."""
    keys = sorted(key_rows)
    first_rows = raw.read(NEXT.format(key_rows=raw.listed(keys))) if keys else []
    ids = [delivery_id for (delivery_id,) in first_rows if delivery_id is not None]
    if not ids:
        return []
    # Locked, so that a move in progress is seen with its new time instead of the committed one.
    rows = raw.read(
        "SELECT key_number, delivery_id, place, CAST(due_at AS CHAR) "
        f"FROM {WAITERS} WHERE delivery_id IN ({raw.listed(ids)}){dialect.locked}"
    )
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def _heads(following: Sequence[tuple[int, int, int, str]], now: str) -> raw.Statement:
    heads = " ".join(f"WHEN {key:d} THEN {delivery_id:d}" for key, delivery_id, *_ in following)
    places = " ".join(f"WHEN {key:d} THEN {place:d}" for key, _, place, _ in following)
    return (
        f"UPDATE {KEYS} SET head_id = CASE id {heads} END, head_place = CASE id {places} END, "
        "head_at = %s, waiting_count = waiting_count - 1, blocked_at = NULL "
        f"WHERE id IN ({raw.listed(key for key, *_ in following)})",
        [now],
    )


def _drop(delivery_ids: Collection[int], key_rows: dict[int, Locked]) -> dict[int, Locked]:
    """Remove waiting deliveries from their keys, and return the keys as they are then."""
    gone = raw.listed(sorted(delivery_ids))
    rows = raw.read(f"SELECT key_number FROM {WAITERS} WHERE delivery_id IN ({gone})")
    fewer = Tally(key for (key,) in rows if key in key_rows)
    if not fewer:
        return key_rows
    by_count: dict[int, list[int]] = {}
    for key, count in fewer.items():
        by_count.setdefault(count, []).append(key)
    raw.execute_all(
        [
            (f"DELETE FROM {WAITERS} WHERE delivery_id IN ({gone})", []),
            *(lengthen(-count, keys, 0) for count, keys in by_count.items()),
        ]
    )
    return {
        key: key_row._replace(waiting_count=key_row.waiting_count - fewer[key])
        for key, key_row in key_rows.items()
    }
