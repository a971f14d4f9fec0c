"""Choose the consumers that get a message, and share work among pumps."""

import hashlib
import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

Row: TypeAlias = tuple[int, Any, int]
"""Negated priority, due time and id of a due delivery, so that rows sort by urgency."""
_MASK = (1 << 64) - 1
QUEUE = "queue"
LEVELS = range(9, -1, -1)
"""All priorities, the highest first."""


class KeyHolder(NamedTuple):
    """A live process, and the encryption keys that it has."""

    generation: int
    keys: frozenset[str]
    missing: frozenset[str]
    """Ids of keys that it has needed and lacks."""
    name: str = ""

    def lacks(self, sealing: str) -> bool:
        """Whether it lacks the current encryption key, or one that it has needed."""
        return bool(self.missing) or sealing not in self.keys

    @classmethod
    def of(cls, generation: int, keys: str, missing: str, name: str = "") -> Self:
        """Build from a row, in which fingerprints are separated by commas."""
        return cls(generation, _ids(keys), _ids(missing), name)


def able(pumps: Iterable[KeyHolder], sealing: str) -> set[int]:
    """Return the generations of the pumps that may serve consumers.

    Excludes pumps without the current encryption key, and pumps that lack a key which a remaining
    pump has, unless none would be left. Every process computes the same result from the same rows,
    so of two pumps that each lack a key of the other only one is excluded.
    """
    pumps = sorted(pumps)
    remaining = [pump for pump in pumps if sealing in pump.keys] or pumps
    for pump in list(remaining):
        if any(pump.missing & other.keys for other in remaining):
            remaining.remove(pump)
    return {pump.generation for pump in remaining}


def owning_consumer(consumer_id: int, generations: Collection[int]) -> int | None:
    """Return which pump of ``generations`` owns the consumer; None when there is none.

    Every process computes the same result from the same set. When a pump leaves, only its own
    consumers move.
    """
    return next(iter(owners(consumer_id, generations, 1)), None)


def owners(consumer_id: int, generations: Collection[int], most: int) -> tuple[int, ...]:
    """Return the ``most`` pumps that serve the consumer together, in the same order everywhere.

    When one leaves, the others stay. Returns fewer if there are fewer pumps.
    """
    if not generations:
        return ()
    if most == 1:
        return (max(generations, key=lambda pump: (_mix(consumer_id, pump), pump)),)
    ranked = heapq.nlargest(most, generations, key=lambda pump: (_mix(consumer_id, pump), pump))
    return tuple(ranked)


class ConsumerShare(NamedTuple):
    """The part of a consumer's deliveries for one of several owners."""

    place: int
    owners: tuple[int, ...]
    """Generations of all owners; this one is at ``place``."""

    @property
    def is_all(self) -> bool:
        """Whether the consumer has no other owner."""
        return len(self.owners) == 1

    def of(self, total: int, owner: int) -> int:
        """Return an owner's part of a limit, 0 for others; the parts add up to the limit."""
        if owner not in self.owners:
            return 0
        return part(total, self.owners.index(owner), len(self.owners))

    def prefers(self, delivery_id: int) -> bool:
        """Whether the delivery belongs to this owner's part."""
        return delivery_id % len(self.owners) == self.place


ALONE = ConsumerShare(0, (0,))
"""The share of a single owner."""


def part(total: int, index: int, count: int) -> int:
    """Return the ``index``-th of ``count`` parts of a number, divided as evenly as possible."""
    return total // count + (index < total % count)


class Recipient(Protocol):
    """The part of a consumer that the choice needs."""

    @property
    def id(self) -> int: ...
    @property
    def halted(self) -> bool: ...


class Channel(Protocol):
    """The part of a channel that the choice needs."""

    @property
    def kind(self) -> str: ...
    def wanting(self, event_type: str, /) -> Sequence[Recipient]: ...


class Recipients:
    """Distributes messages during one fan-out transaction.

    A queue's message goes to the consumer with the fewest unfinished deliveries, so a slow consumer
    gets fewer and an idle one gets the next. Halted consumers and failing ones that wait for their
    next probe (S4-24) are skipped, unless there are no others. All messages of an ordering key go
    to the same consumer, halted or not, because two consumers could handle them out of order.
    """

    def __init__(
        self,
        channels: Mapping[int, Channel],
        unfinished: Callable[[Collection[int]], Mapping[int, int]],
        resting: Callable[[Collection[int]], Collection[int]],
    ) -> None:
        self._channels = channels
        self._unfinished, self._resting = unfinished, resting
        self._recipients: dict[tuple[int, str], Sequence[Recipient]] = {}
        self._ids: dict[tuple[int, str], list[int]] = {}
        self._open: dict[int, int] = {}
        self._avoided: set[int] = set()

    def of(self, channel_id: int, event_type: str, ordering_key: str) -> list[int]:
        """Return the consumers that get the next message of this kind."""
        kind = channel_id, event_type
        channel = self._channels.get(channel_id)
        if kind not in self._recipients:
            wanting = channel.wanting(event_type) if channel else ()
            self._recipients[kind] = wanting
            self._ids[kind] = [consumer.id for consumer in wanting]
        if channel is None or channel.kind != QUEUE or not self._ids[kind]:
            return self._ids[kind]
        return [self._recipient(self._recipients[kind], self._ids[kind], ordering_key)]

    def _recipient(self, wanting: Sequence[Recipient], ids: list[int], ordering_key: str) -> int:
        if ordering_key:
            owner = owning_consumer(_number(ordering_key), ids)
            assert owner is not None
            return owner
        if not self._open.keys() >= set(ids):
            self._open |= {key: self._open.get(key, n) for key, n in self._unfinished(ids).items()}
            self._avoided.update(self._resting(ids))
        awake = [consumer.id for consumer in wanting if not consumer.halted] or ids
        able = [consumer_id for consumer_id in awake if consumer_id not in self._avoided] or awake
        # Ties go to the one that registered first; any rule works that is the same everywhere.
        chosen = min(able, key=lambda consumer_id: (self._open[consumer_id], consumer_id))
        self._open[chosen] += 1
        return chosen


def by_age(row: Row) -> tuple[Any, int]:
    """The sort key that ignores priority."""
    return row[1:]


def share_out(
    due_rows: Mapping[int, Sequence[Row]],
    limits: Mapping[int, int],
    shortened: Collection[int],
    most: int,
    *,
    oldest_first: bool = False,
) -> dict[int, list[Row]]:
    """Choose at most ``most`` due rows across consumers, within each one's limit, in order.

    The highest priority goes first, whichever consumer it is for; within a priority the row that
    has been due longest. ``due_rows`` has each consumer's rows, up to one more than its limit of
    each priority. For the ``shortened`` consumers the limit is only a share: if it excludes a row,
    nothing of lower priority is chosen instead, so that the next claim has room for that row.
    ``oldest_first`` is the starvation guard: half is chosen by age alone, then the rest by
    priority.
    """
    chosen: dict[int, list[Row]] = {consumer_id: [] for consumer_id in due_rows}
    owners = {row: consumer_id for consumer_id, rows in due_rows.items() for row in rows}
    ordered = sorted(owners)
    taken = 0
    if oldest_first:
        room = sum(min(limits[consumer_id], len(rows)) for consumer_id, rows in due_rows.items())
        half = max(1, min(most, room) // 2)
        for row in sorted(ordered, key=by_age):
            own_rows = chosen[owners[row]]
            if taken < half and len(own_rows) < limits[owners[row]]:
                own_rows.append(row)
                taken += 1
        ordered = sorted(owners.keys() - set(chain.from_iterable(chosen.values())))
    lowest = 0
    for row in ordered:
        consumer_id = owners[row]
        if taken >= most or row[0] > lowest:
            break
        own_rows = chosen[consumer_id]
        if len(own_rows) < limits[consumer_id]:
            own_rows.append(row)
            taken += 1
        elif consumer_id in shortened:
            lowest = min(lowest, row[0])
    return chosen


def _ids(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.split(",")))


def _mix(left: int, right: int) -> int:
    """SplitMix64's finaliser over both numbers: well distributed, and equal in every process."""
    value = (left * 0x9E3779B97F4A7C15 + right) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _number(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())
