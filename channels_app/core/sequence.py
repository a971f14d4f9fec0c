"""Decide whether a numbered message is stored, waits for earlier ones, or is too late (S2-65)."""

from enum import Enum, auto
from hashlib import blake2b
from typing import NamedTuple

RESTART = 0
"""The number that restarts a sequence. It is always accepted."""
FIRST = 1
MAX_NUMBER = 2**53 - 1
"""Up to this limit every JSON parser reads an integer exactly."""


class Turn(Enum):
    """The result for a number."""

    GOES = auto()
    EARLY = auto()
    """Earlier numbers are missing."""
    PASSED = auto()
    """The number was stored already, or skipped."""


class Decision(NamedTuple):
    """The result for a number, and the number expected next."""

    turn: Turn
    expected: int
    skipped: int = 0
    """How many numbers this decision skips, beginning with the expected one."""


def sequence_id(channel_id: int, producer_id: int | None, ordering_key: str) -> int:
    """The id of the sequence of a producer's key: 63 bits, positive, equal in all processes."""
    text = f"{channel_id}:{producer_id}:{ordering_key}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1


def decide(number: int, expected: int, *, is_over: bool = False, lower: int | None) -> Decision:
    """Decide about ``number``.

    ``is_over``: it has waited for the channel's whole reorder window. ``lower`` is the lowest
    number below it that still waits. That one goes first, since it also arrived within its window.
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
