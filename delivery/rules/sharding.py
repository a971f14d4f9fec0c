"""Decide which live pumps serve a consumer, by rendezvous hashing."""

import heapq
from collections.abc import Collection, Iterable
from typing import NamedTuple, Self

_MASK = (1 << 64) - 1


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


def _ids(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.split(",")))


def able(pumps: Iterable[KeyHolder], sealing: str) -> set[int]:
    """Return the generations of the pumps that may serve consumers.

    Excludes pumps without the current encryption key, and pumps that lack a key which a remaining
    pump has, unless none would be left. Every process computes the same result from the same rows,
    so of two pumps that each lack a key of the other only one is excluded.
    """
    pumps = sorted(pumps)
    left = [pump for pump in pumps if sealing in pump.keys] or pumps
    for pump in list(left):
        if any(pump.missing & other.keys for other in left):
            left.remove(pump)
    return {pump.generation for pump in left}


def owner(consumer_id: int, generations: Collection[int]) -> int | None:
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


class Share(NamedTuple):
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


ALONE = Share(0, (0,))
"""The share of a single owner."""


def part(total: int, index: int, count: int) -> int:
    """Return the ``index``-th of ``count`` parts of a number, divided as evenly as possible."""
    return total // count + (index < total % count)


def _mix(left: int, right: int) -> int:
    """SplitMix64's finaliser over both numbers: well distributed, and equal in every process."""
    value = (left * 0x9E3779B97F4A7C15 + right) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
