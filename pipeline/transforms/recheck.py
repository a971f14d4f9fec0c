"""Query the tables again about suspected discrepancies, each row in one statement.

An audit reads the tables one after the other while the broker continues, so a row may only have
changed in between. This runs on Spark's workers, and imports neither Spark nor the broker.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from pipeline.broker import executor

SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("prefix", pa.string()),
        ("key", pa.int64()),
        ("channel_id", pa.int64()),
        ("consumer_id", pa.int64()),
        ("owner", pa.int64()),
    ]
)
"""``kind`` names the query, ``name`` the check that people read, ``prefix`` and ``key`` the row,
``owner`` the key whose hour is reported."""
CHUNK = 500
"""Keys of one query."""
KEY = pa.schema([("id", pa.int64())])
OPEN = "(d.state = 'in_flight')"
SENDABLE = "'queued', 'in_flight', 'awaiting_ack', 'dead'"
MESSAGES, DELIVERIES = "channels_app_message m", "delivery_delivery d"
WELL = {
    "attempts": (
        f"SELECT d.id FROM {DELIVERIES} WHERE d.id IN ({{keys}}) AND d.attempt_count = {OPEN} + "
        "(SELECT COUNT(*) FROM delivery_attempt a WHERE a.delivery_id = d.id) AND NOT EXISTS ("
        "SELECT 1 FROM delivery_attempt a WHERE a.delivery_id = d.id "
        f"AND (a.number = 0 OR a.number + {OPEN} > d.attempt_count))"
    ),
    "fan_out": (
        f"SELECT m.id FROM {MESSAGES} WHERE m.id IN ({{keys}}) AND m.consumer_count = "
        f"(SELECT COUNT(*) FROM {DELIVERIES} WHERE d.message_id = m.id)"
    ),
    "missing": (
        f"SELECT m.id FROM {MESSAGES} WHERE m.id IN ({{keys}}) AND (m.state <> 'dispatched' OR "
        f"EXISTS (SELECT 1 FROM {DELIVERIES} WHERE d.message_id = m.id "
        "AND d.consumer_id = {consumer:d}))"
    ),
    "messageless": (
        f"SELECT d.id FROM {DELIVERIES} JOIN {MESSAGES} ON m.id = d.message_id "
        "WHERE d.id IN ({keys})"
    ),
    "doubled_message": (
        "SELECT r.message_id AS id FROM delivery_restoredmessage r WHERE r.message_id IN ({keys})"
    ),
}
"""By kind: the query for correct keys, whose rows were only changing. Rows that are only in the
lake remain findings."""
OFF = {
    "undispatched": (
        f"SELECT m.id FROM {MESSAGES} WHERE m.id IN ({{keys}}) AND m.state = 'accepted'"
    ),
    "channelless": f"SELECT m.id FROM {MESSAGES} WHERE m.id IN ({{keys}})",
    "consumerless": f"SELECT d.id FROM {DELIVERIES} WHERE d.id IN ({{keys}})",
    "messageless_live": (
        f"SELECT d.id FROM {DELIVERIES} WHERE d.id IN ({{keys}}) AND NOT EXISTS "
        f"(SELECT 1 FROM {MESSAGES} WHERE m.id = d.message_id)"
    ),
}
"""By kind: the query for keys that are still wrong. A deleted channel or consumer leaves its
history in the lake by design."""

RANGES = {
    "bodies": (
        f"SELECT m.id AS id, m.channel_id AS channel_id FROM {MESSAGES} "
        "WHERE m.id >= {low:d} AND m.id < {high:d} AND (m.state = 'accepted' OR EXISTS "
        f"(SELECT 1 FROM {DELIVERIES} WHERE d.message_id = m.id AND d.state IN ({SENDABLE}))) "
        "AND NOT EXISTS (SELECT 1 FROM channels_app_messagebody b WHERE b.message_id = m.id)"
    ),
    "attempts_alone": (
        "SELECT a.id AS id, 0 AS channel_id FROM delivery_attempt a "
        "WHERE a.id >= {low:d} AND a.id < {high:d} AND NOT EXISTS "
        f"(SELECT 1 FROM {DELIVERIES} WHERE d.id = a.delivery_id)"
    ),
    "bodies_alone": (
        "SELECT b.message_id AS id, 0 AS channel_id FROM channels_app_messagebody b "
        "WHERE b.message_id >= {low:d} AND b.message_id < {high:d} AND NOT EXISTS "
        f"(SELECT 1 FROM {MESSAGES} WHERE m.id = b.message_id)"
    ),
    "lost": (
        "SELECT r.message_id AS id, 0 AS channel_id FROM channels_app_idempotencyrecord r "
        "WHERE r.message_id >= {low:d} AND r.message_id < {high:d} AND NOT EXISTS "
        f"(SELECT 1 FROM {MESSAGES} WHERE m.id = r.message_id)"
    ),
}
"""Queries of the tables alone, each of a range of keys in one statement. Messages that are
``lost`` may still be in the lake."""
NAMES = {
    "bodies": ("bodies", "msg"),
    "attempts_alone": ("orphans", "att"),
    "bodies_alone": ("orphans", "msg"),
    "lost": ("lost", "msg"),
}
RANGE = pa.schema([("kind", pa.string()), ("low", pa.int64()), ("high", pa.int64())])
PLACED = pa.schema([("id", pa.int64()), ("channel_id", pa.int64())])

Row = dict[str, Any]


def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield discrepancies in ranges (RANGE) of the tables, as rows of SCHEMA."""
    for batch in batches:
        for row in batch.to_pylist():
            sql = RANGES[row["kind"]].format(low=row["low"], high=row["high"])
            name, prefix = NAMES[row["kind"]]
            found = [
                {
                    "kind": row["kind"],
                    "name": name,
                    "prefix": prefix,
                    "key": it["id"],
                    "channel_id": it["channel_id"],
                    "consumer_id": 0,
                    "owner": it["id"],
                }
                for answer in executor.read(sql, PLACED)
                for it in answer.to_pylist()
            ]
            if found:
                yield pa.RecordBatch.from_pylist(found, schema=SCHEMA)


def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of SCHEMA that are still wrong."""
    for batch in batches:
        rows = sorted(batch.to_pylist(), key=_question)
        kept = [row for _, some in groupby(rows, _question) for row in still_off(list(some))]
        if kept:
            yield pa.RecordBatch.from_pylist(kept, schema=SCHEMA)


def still_off(rows: Sequence[Row]) -> list[Row]:
    """Check rows of one kind, for ``missing`` of one consumer."""
    kind, consumer = rows[0]["kind"], rows[0]["consumer_id"]
    if kind in WELL:
        well = _ask(WELL[kind], rows, consumer)
        return [row for row in rows if row["key"] not in well]
    if kind in OFF:
        off = _ask(OFF[kind], rows, consumer)
        return [row for row in rows if row["key"] in off]
    return list(rows)


def _question(row: Row) -> tuple[str, int]:
    return row["kind"], row["consumer_id"] if row["kind"] == "missing" else 0


def _ask(sql: str, rows: Sequence[Row], consumer: int) -> set[int]:
    found: set[int] = set()
    for start in range(0, len(rows), CHUNK):
        keys = ", ".join(str(int(row["key"])) for row in rows[start : start + CHUNK])
        for batch in executor.read(sql.format(keys=keys, consumer=consumer), KEY):
            found.update(batch.column(0).to_pylist())
    return found
