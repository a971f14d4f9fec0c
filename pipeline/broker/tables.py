"""Tables: the broker's rows as columns, the same in its database, on the way and in the lake.

Instants are UTC with microseconds, durations carry their unit. docs/pipeline.md has the meaning of
each column; tests/pipeline hold these lists to the broker's own tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

INSTANT = pa.timestamp("us", tz="UTC")
EPOCH = datetime(2025, 1, 1, tzinfo=UTC)
"""Where keys begin."""
TIME_SHIFT = 22
"""A key is so many bits below the milliseconds since then."""
LARGEST_KEY = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Column:
    """One value of a row, and how it is read."""

    name: str
    type: pa.DataType
    sql: str
    """An expression over the table's FROM clause."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that are read by ranges of a key."""

    name: str
    """In the lake."""
    source: str
    """FROM clause."""
    key: str
    """The expression that ranges are cut by: a primary key that rises with time."""
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """Its columns in the lake."""
        return pa.schema([(column.name, column.type) for column in self.columns])

    def select(self, where: str, names: Sequence[str] = ()) -> str:
        """A query of all columns, or of those named in their order."""
        known = {column.name: column for column in self.columns}
        wanted = [known[name] for name in names] if names else self.columns
        shown = ", ".join(f"{column.sql} AS {column.name}" for column in wanted)
        return f"SELECT {shown} FROM {self.source} WHERE {where}"


def _columns(prefix: str, **types: pa.DataType) -> tuple[Column, ...]:
    return tuple(Column(name, kind, f"{prefix}.{name}") for name, kind in types.items())


MESSAGE_COLUMNS = _columns(
    "m",
    id=pa.int64(),
    channel_id=pa.int64(),
    producer_id=pa.int64(),
    state=pa.string(),
    event_type=pa.string(),
    priority=pa.int16(),
    ordering_key=pa.string(),
    idempotency_key=pa.string(),
    content_type=pa.string(),
    headers=pa.string(),
    body_bytes=pa.int64(),
    accepted_at=INSTANT,
    due_at=INSTANT,
    expires_at=INSTANT,
    consumer_count=pa.int32(),
    version=pa.int32(),
)
MESSAGES = Table("messages", "channels_app_message m", "m.id", MESSAGE_COLUMNS)
"""Messages without their bodies: for everything that counts."""
WHOLE_MESSAGES = Table(
    "messages",
    "channels_app_message m LEFT JOIN channels_app_messagebody b ON b.message_id = m.id",
    "m.id",
    (
        *MESSAGE_COLUMNS,
        Column("body", pa.binary(), "b.data"),
        Column("body_key_id", pa.string(), "b.key_id"),
    ),
)
"""As they are archived: the body as it is stored, sealed or plain."""
DELIVERIES = Table(
    "deliveries",
    "delivery_delivery d",
    "d.id",
    _columns(
        "d",
        id=pa.int64(),
        message_id=pa.int64(),
        consumer_id=pa.int64(),
        channel_id=pa.int64(),
        state=pa.string(),
        reason=pa.string(),
        priority=pa.int16(),
        expires_at=INSTANT,
        event_type=pa.string(),
        ordering_key=pa.string(),
        attempt_count=pa.int32(),
        failure_count=pa.int32(),
        interruption_count=pa.int32(),
        outcome=pa.string(),
        status_code=pa.int32(),
        replay_id=pa.int64(),
        accepted_at=INSTANT,
        finished_at=INSTANT,
        version=pa.int32(),
    ),
)
ATTEMPT_COLUMNS = _columns(
    "a",
    id=pa.int64(),
    delivery_id=pa.int64(),
    number=pa.int32(),
    started_at=INSTANT,
    outcome=pa.string(),
    status_code=pa.int32(),
    error=pa.string(),
    answer_headers=pa.string(),
    answer_excerpt=pa.binary(),
    connect_ms=pa.int32(),
    first_byte_ms=pa.int32(),
    total_ms=pa.int32(),
    remote_address=pa.string(),
    worker=pa.string(),
)
WHOSE = _columns("d", message_id=pa.int64(), consumer_id=pa.int64(), channel_id=pa.int64())
"""What an attempt's delivery knows of it."""
ATTEMPTS = Table(
    "attempts",
    "delivery_attempt a JOIN delivery_delivery d ON d.id = a.delivery_id",
    "a.id",
    (*ATTEMPT_COLUMNS, *WHOSE),
)
"""By their own keys, with whose they are."""
ATTEMPTS_ALONE = Table("attempts", "delivery_attempt a", "a.id", ATTEMPT_COLUMNS)
"""The same without whose they are."""
ATTEMPTS_OF_DELIVERIES = Table("attempts", ATTEMPTS.source, "d.id", ATTEMPTS.columns)
"""By the keys of their deliveries: with these they are archived."""


RESTORED_KEYS = Table(
    "restored_keys",
    "delivery_restoredmessage r",
    "r.message_id",
    (Column("id", pa.int64(), "r.message_id"),),
)
"""Messages that a replay brought back from the lake: they are there and here."""

BY_NAME = {table.name: table for table in (MESSAGES, DELIVERIES, ATTEMPTS, RESTORED_KEYS)}


_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def public(prefix: str, key: int) -> str:
    """A key as people see it: ``msg_`` and 13 characters, for the prefix ``msg``."""
    digits = (_ALPHABET[(key >> shift) & 31] for shift in range(60, -1, -5))
    return f"{prefix}_{''.join(digits)}"


def key_of(prefix: str, text: str) -> int | None:
    """The key behind its public form; None for anything else."""
    head, _, digits = text.partition("_")
    if head != prefix or len(digits) != 13 or not set(digits) <= set(_ALPHABET):
        return None
    found = 0
    for digit in digits:
        found = found << 5 | _ALPHABET.index(digit)
    return found if found <= LARGEST_KEY else None


def first_key(at: datetime) -> int:
    """The smallest key that was made at ``at`` or later."""
    return max(0, (at - EPOCH) // timedelta(milliseconds=1)) << TIME_SHIFT


def made_at(key: int) -> datetime:
    """When a key was made, to the millisecond."""
    return EPOCH + timedelta(milliseconds=key >> TIME_SHIFT)
