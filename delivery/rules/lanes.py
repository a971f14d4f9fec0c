"""Ids of ordering keys' lanes, the order of messages in them, and the due time of waiting ones."""

from datetime import UTC, datetime
from hashlib import blake2b

from channels_app.rules.ids import TIME_SHIFT

BEHIND = datetime(9000, 1, 1, tzinfo=UTC)
"""The ``due_at`` of a delivery that waits for an earlier one of its key. It is later than any time
that may be requested, so a claim never reads these rows, however many there are."""


def lane_id(consumer_id: int, ordering_key: str) -> int:
    """Return the id of a consumer's key: a positive 63-bit number, equal in every process.

    Two keys with the same number would only wait for each other. Among a million lanes that happens
    in one of ten million installations.
    """
    digest = blake2b(f"{consumer_id}:{ordering_key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def acceptance(message_id: int, accepted_at: str) -> tuple[int, str, int]:
    """Return the sort key for the order in which messages were accepted.

    Message ids contain a clock with milliseconds that all processes share; within one millisecond
    the time of acceptance decides.
    """
    return message_id >> TIME_SHIFT, accepted_at, message_id
