"""Describe the broker's rows as columns, the same in its database, in Arrow and in the lake.

Instants are UTC with microseconds, and names of durations have their unit. docs/pipeline.md
describes each column; tests/pipeline compare these lists with the broker's own tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

INSTANT = pa.timestamp("us", tz="UTC")
EPOCH = datetime(2025, 1, 1, tzinfo=UTC)
"""Time zero of keys."""
TIME_SHIFT = 22
"""A key is the milliseconds since then, shifted left by this many bits, plus lower bits."""
LARGEST_KEY = (1 << 63) - 1
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


@dataclass(frozen=True, slots=True)
class Column:
    """A column and the SQL that reads it."""

    name: str
    type: pa.DataType
    sql: str
    """An expression over the table's FROM clause."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that is read by ranges of a key."""

    name: str
    """Name in the lake."""
    source: str
    """FROM clause."""
    key: str
    """The expression that ranges are cut by: a primary key that rises with time."""
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """Columns in the lake."""
        return pa.schema([(column.name, column.type) for column in self.columns])

    def select(self, where: str, names: Sequence[str] = ()) -> str:
        """Return a query of all columns, or of the named ones in this order."""
        by_name = {column.name: column for column in self.columns}
        columns = [by_name[name] for name in names] if names else self.columns
        selected = ", ".join(f"{column.sql} AS {column.name}" for column in columns)
        return f"SELECT {selected} FROM {self.source} WHERE {where}"


RESTORED_KEYS = Table(
    "restored_keys",
    "delivery_restoredmessage r",
    "r.message_id",
    (Column("id", pa.int64(), "r.message_id"),),
)
"""Messages that a replay restored from the lake: both the tables and the lake have them."""


def _columns(prefix: str, **types: pa.DataType) -> tuple[Column, ...]:
    return tuple(Column(name, kind, f"{prefix}.{name}") for name, kind in types.items())


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
OWNER_COLUMNS = _columns("d", message_id=pa.int64(), consumer_id=pa.int64(), channel_id=pa.int64())
"""Columns that an attempt takes from its delivery."""
ATTEMPTS = Table(
    "attempts",
    "delivery_attempt a JOIN delivery_delivery d ON d.id = a.delivery_id",
    "a.id",
    (*ATTEMPT_COLUMNS, *OWNER_COLUMNS),
)
"""Attempts by their own keys, with the columns of their deliveries."""
ATTEMPTS_ONLY = Table("attempts", "delivery_attempt a", "a.id", ATTEMPT_COLUMNS)
"""Attempts without the columns of their deliveries."""
ATTEMPTS_OF_DELIVERIES = Table("attempts", ATTEMPTS.source, "d.id", ATTEMPTS.columns)
"""Attempts by the keys of their deliveries, which is how they are archived."""
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
"""Messages without their bodies, for everything that counts messages."""
MESSAGES_WITH_BODIES = Table(
    "messages",
    "channels_app_message m LEFT JOIN channels_app_messagebody b ON b.message_id = m.id",
    "m.id",
    (
        *MESSAGE_COLUMNS,
        Column("body", pa.binary(), "b.data"),
        Column("body_key_id", pa.string(), "b.key_id"),
    ),
)
"""Messages as they are archived, with the body as stored: encrypted or plain."""
BY_NAME = {table.name: table for table in (MESSAGES, DELIVERIES, ATTEMPTS, RESTORED_KEYS)}


def public_id(prefix: str, key: int) -> str:
    """Return the public form of a key: ``msg_`` and 13 characters, for the prefix ``msg``."""
    digits = (_ALPHABET[(key >> shift) & 31] for shift in range(60, -1, -5))
    return f"{prefix}_{''.join(digits)}"


def parse_id(prefix: str, text: str) -> int | None:
    """Return the key of a public form; None for any other text."""
    head, _, digits = text.partition("_")
    if head != prefix or len(digits) != 13 or not set(digits) <= set(_ALPHABET):
        return None
    key = 0
    for digit in digits:
        key = key << 5 | _ALPHABET.index(digit)
    return key if key <= LARGEST_KEY else None


def first_key(at: datetime) -> int:
    """Return the smallest key generated at ``at`` or later."""
    return max(0, (at - EPOCH) // timedelta(milliseconds=1)) << TIME_SHIFT


def created_at(key: int) -> datetime:
    """Return when a key was generated, to the millisecond."""
    return EPOCH + timedelta(milliseconds=key >> TIME_SHIFT)
