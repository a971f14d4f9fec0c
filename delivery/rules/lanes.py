"""Lanes: which deliveries keep an order among themselves, and where those that wait stand."""

from datetime import UTC, datetime
from hashlib import blake2b

from channels_app.rules.ids import TIME_SHIFT

BEHIND = datetime(9000, 1, 1, tzinfo=UTC)
"""The ``due_at`` of a delivery that waits for an earlier one of its key. Later than any instant
that may be asked for: a claim's ranges end long before, however many stand there."""


def lane_id(consumer_id: int, ordering_key: str) -> int:
    """The lane of a consumer's key: a positive 63-bit number, the same in every process.

    Two keys that met in one number would only wait for each other; among a million lanes that
    happens once in ten million installations.
    """
    digest = blake2b(f"{consumer_id}:{ordering_key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def acceptance(message_id: int, accepted_at: str) -> tuple[int, str, int]:
    """Sorts messages in the order in which they were accepted.

    Processes share the clock that their keys carry, to the millisecond; within one, the instant
    of the acceptance decides.
    """
    return message_id >> TIME_SHIFT, accepted_at, message_id
