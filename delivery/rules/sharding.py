"""Sharding: which of the live pumps looks after a consumer (rendezvous hashing)."""

from collections.abc import Collection

_MASK = (1 << 64) - 1


def owner(consumer_id: int, generations: Collection[int]) -> int | None:
    """The pump of ``generations`` that owns the consumer; None when there is none.

    Every process computes the same answer from the same set, and when one pump leaves, only its
    own consumers move.
    """
    if not generations:
        return None
    return max(generations, key=lambda generation: (_mix(consumer_id, generation), generation))


def _mix(left: int, right: int) -> int:
    """SplitMix64's finaliser over both numbers: well spread and equal in every process."""
    value = (left * 0x9E3779B97F4A7C15 + right) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
