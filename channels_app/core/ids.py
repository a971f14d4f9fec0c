"""Generate time-ordered 64-bit ids in the application, and convert them to their public form."""

import os
import re
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

MESSAGE = "msg"
DELIVERY = "dlv"
ATTEMPT = "att"
REPLAY = "rpl"
ORDERING_KEY = "oky"
MOVE = "mov"

# 41 bits of milliseconds (until 2094), 10 bits of slot, 12 bits of sequence: a positive BIGINT.
EPOCH_MS = 1_735_689_600_000
"""2025-01-01T00:00:00Z, the time of id 0."""
_SLOT_BITS = 10
_SEQUENCE_BITS = 12
TIME_SHIFT = _SLOT_BITS + _SEQUENCE_BITS
"""Bits to the right of the time."""
_SLOTS = 1 << _SLOT_BITS
_SEQUENCES = 1 << _SEQUENCE_BITS
LARGEST = (1 << 63) - 1

# Crockford's alphabet preserves the numeric order and has no letters that look like digits.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TO_INT_DIGITS = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
# 13 digits of 5 bits are 65 bits; the first digit is limited to 3 bits, which leaves 63.
_PUBLIC = re.compile(rf"[0-7][{_ALPHABET}]{{12}}")
_UUID_BITS = 10
"""Low bits of slot and sequence that do not fit into a UUID's field of 12 bits (rand_a)."""
_UUID_ZEROS = 52
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
"""All pairs of digits: encoding two at a time takes a third of the time."""


def unix_ms() -> int:
    """Return this host's time in Unix milliseconds."""
    return time.time_ns() // 1_000_000


class IdMaker:
    """Generates ids that increase with every call and never repeat within the process.

    A random slot tells processes apart. Two processes with the same slot can generate the same id
    within a millisecond; the primary key then collides, and the caller reseeds and retries.
    Thread-safe.
    """

    def __init__(self, slot: int | None = None, now_ms: Callable[[], int] = unix_ms) -> None:
        self._slot = secrets.randbelow(_SLOTS) if slot is None else slot % _SLOTS
        self._now_ms = now_ms
        self._ms = 0
        self._sequence = -1
        self._lock = threading.Lock()
        _makers.add(self)

    def __call__(self) -> int:
        """The next id. If one millisecond needs more than 4,096, the next one's are used."""
        now = self._now_ms() - EPOCH_MS  # before the lock, because it may query the database
        with self._lock:
            # If the clock steps back, continue from the last time.
            if now > self._ms:
                self._ms, self._sequence = now, 0
            elif self._sequence + 1 < _SEQUENCES:
                self._sequence += 1
            else:
                self._ms, self._sequence = self._ms + 1, 0
            return (self._ms << TIME_SHIFT) | (self._slot << _SEQUENCE_BITS) | self._sequence

    def reseed(self) -> None:
        """Change to another random slot, after a collision on the primary key."""
        with self._lock:
            self._slot = (self._slot + 1 + secrets.randbelow(_SLOTS - 1)) % _SLOTS
            # The new slot may be lower: skip to the next millisecond, so that ids still increase.
            self._sequence = _SEQUENCES - 1

    def _after_fork(self) -> None:
        # Without it parent and child generate the same ids, and the lock may stay held for ever.
        self._lock = threading.Lock()
        self.reseed()


_makers: weakref.WeakSet[IdMaker] = weakref.WeakSet()


def reseed_all() -> None:
    """`reseed` every maker of this process."""
    for maker in _makers:
        maker.reseed()


def _reseed_all() -> None:
    for maker in _makers:
        maker._after_fork()


os.register_at_fork(after_in_child=_reseed_all)


def to_public(prefix: str, number: int) -> str:
    """Convert an id to its public form: ``msg_`` and 13 characters for the prefix ``msg``.

    Public forms sort like the ids. Raises ValueError for a number that is not an id (negative, or
    above 63 bits).
    """
    if not 0 <= number <= LARGEST:
        raise ValueError(f"{number} is not a key.")
    pairs = "".join([_PAIRS[(number >> shift) & 1023] for shift in (50, 40, 30, 20, 10, 0)])
    return f"{prefix}_{_ALPHABET[number >> 60]}{pairs}"


def from_public(prefix: str, text: str) -> int | None:
    """The id of a public form; None for anything that ``to_public`` does not produce.

    One id has exactly one public form, so that ids can be compared as text.
    """
    head, _, digits = text.partition("_")
    if head != prefix or not _PUBLIC.fullmatch(digits):
        return None
    return int(digits.translate(_TO_INT_DIGITS), 32)


def to_uuid(number: int) -> str:
    """An id as a UUID of version 7, for clients that need one; sorts like the id.

    It has the id's time, then slot and sequence in place of random bits; the last 52 bits are zero
    (RFC 9562, 5.7).
    """
    low = number & ((1 << TIME_SHIFT) - 1)
    bits = created_ms(number) << 80 | 7 << 76 | (low >> _UUID_BITS) << 64
    bits |= 2 << 62 | (low & ((1 << _UUID_BITS) - 1)) << _UUID_ZEROS
    return str(UUID(int=bits))


def from_uuid(text: str) -> int | None:
    """The id of a UUID; None for anything that ``to_uuid`` does not produce."""
    if not _UUID.fullmatch(text):
        return None
    digits = UUID(text).int
    ms = (digits >> 80) - EPOCH_MS
    low = (digits >> 64 & 0xFFF) << _UUID_BITS | digits >> _UUID_ZEROS & ((1 << _UUID_BITS) - 1)
    number = ms << TIME_SHIFT | low
    return number if 0 <= number <= LARGEST and to_uuid(number) == text else None


def message_number(text: str) -> int | None:
    """The id of a message from either public form, ``msg_...`` or UUID; None for other text."""
    number = from_public(MESSAGE, text)
    return from_uuid(text) if number is None else number


def created_ms(number: int) -> int:
    """When an id was generated, in Unix milliseconds."""
    return (number >> TIME_SHIFT) + EPOCH_MS


def first_id_at(unix_ms: int) -> int:
    """The smallest id of a millisecond: all older rows have lower ids (for retention cut-offs)."""
    return max(unix_ms - EPOCH_MS, 0) << TIME_SHIFT


def id_at(instant: datetime) -> int:
    """The smallest id of an instant, at most `LARGEST`."""
    return min(first_id_at(int(instant.timestamp() * 1000)), LARGEST)
