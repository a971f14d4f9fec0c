"""Decide whether a numbered message is stored, waits for earlier ones, or is too late (S2-65)."""

from enum import Enum, auto
from hashlib import blake2b
from typing import NamedTuple

RESTART = 0
"""The number that begins a sequence anew. It is always in turn."""
FIRST = 1
MAX_NUMBER = 2**53 - 1
"""Up to here a number of JSON is the same number to everybody who reads it."""


class Turn(Enum):
    """What becomes of a number."""

    GOES = auto()
    EARLY = auto()
    """Earlier ones are missing."""
    PASSED = auto()
    """It went already, or was given up."""


class Decision(NamedTuple):
    """What becomes of a number, and what is expected then."""

    turn: Turn
    expected: int
    skipped: int = 0
    """Numbers given up by this, from the one that was expected on."""


def sequence_id(channel_id: int, producer_id: int | None, ordering_key: str) -> int:
    """The sequence of a producer's key: a positive 63-bit number, the same in every process."""
    text = f"{channel_id}:{producer_id}:{ordering_key}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1


def decide(number: int, expected: int, *, is_over: bool = False, lower: int | None) -> Decision:
    """What becomes of ``number``.

    ``is_over``: it has waited for as long as the channel lets it. ``lower`` is the lowest one
    below it that still waits: that goes first, for it came in time as well.
    """
    if number == RESTART:
        return Decision(Turn.GOES, FIRST)
    if number < expected:
        return Decision(Turn.PASSED, expected)
    if number == expected:
        return Decision(Turn.GOES, number + 1)
    if not is_over:
        return Decision(Turn.EARLY, expected)
    if lower is not None and expected <= lower < number:
        return Decision(Turn.EARLY, lower, lower - expected)
    return Decision(Turn.GOES, number + 1, number - expected)
