"""Sharding: which of the live pumps look after a consumer (rendezvous hashing)."""

import heapq
from collections.abc import Collection, Iterable
from typing import NamedTuple, Self

_MASK = (1 << 64) - 1


class KeyHolder(NamedTuple):
    """A living process, and the encryption keys that it has."""

    generation: int
    keys: frozenset[str]
    missing: frozenset[str]
    """Keys that it met and does not have."""
    name: str = ""

    def lacks(self, sealing: str) -> bool:
        """Whether it lacks the key that seals, or one that it met."""
        return bool(self.missing) or sealing not in self.keys

    @classmethod
    def of(cls, generation: int, keys: str, missing: str, name: str = "") -> Self:
        """As its row has it: fingerprints with commas between them."""
        return cls(generation, _ids(keys), _ids(missing), name)


def _ids(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.split(",")))


def able(pumps: Iterable[KeyHolder], sealing: str) -> set[int]:
    """Generations of the pumps that look after consumers.

    Not those without the key that seals now, and not those that lack a key which another one of
    the rest has; unless nobody would be left. Every process computes the same answer from the same
    rows: two pumps of which each lacks what the other one has do not both step back.
    """
    pumps = sorted(pumps)
    left = [pump for pump in pumps if sealing in pump.keys] or pumps
    for pump in list(left):
        if any(pump.missing & other.keys for other in left):
            left.remove(pump)
    return {pump.generation for pump in left}


def owner(consumer_id: int, generations: Collection[int]) -> int | None:
    """The pump of ``generations`` that owns the consumer; None when there is none.

    Every process computes the same answer from the same set, and when one pump leaves, only its
    own consumers move.
    """
    return next(iter(owners(consumer_id, generations, 1)), None)


def owners(consumer_id: int, generations: Collection[int], most: int) -> tuple[int, ...]:
    """The ``most`` pumps that serve the consumer together, in an order that all agree on.

    When one leaves, the others stay; fewer where there are not so many.
    """
    if not generations:
        return ()
    if most == 1:
        return (max(generations, key=lambda pump: (_mix(consumer_id, pump), pump)),)
    ranked = heapq.nlargest(most, generations, key=lambda pump: (_mix(consumer_id, pump), pump))
    return tuple(ranked)


class Share(NamedTuple):
    """What one of several owners has of a consumer."""

    place: int
    owners: tuple[int, ...]
    """Generations; ours is at ``place``."""

    @property
    def is_all(self) -> bool:
        """Whether nobody else serves the consumer."""
        return len(self.owners) == 1

    def of(self, total: int, owner: int) -> int:
        """The owner's part of a limit; all parts together are the limit. 0 for whoever is none."""
        if owner not in self.owners:
            return 0
        return part(total, self.owners.index(owner), len(self.owners))

    def prefers(self, delivery_id: int) -> bool:
        """Whether the delivery is ours rather than another owner's."""
        return delivery_id % len(self.owners) == self.place


ALONE = Share(0, (0,))
"""Of whoever serves a consumer alone."""


def part(total: int, index: int, count: int) -> int:
    """The ``index``-th of ``count`` parts of a number, as equal as whole numbers can be."""
    return total // count + (index < total % count)


def _mix(left: int, right: int) -> int:
    """SplitMix64's finaliser over both numbers: well spread and equal in every process."""
    value = (left * 0x9E3779B97F4A7C15 + right) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
