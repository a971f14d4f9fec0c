"""Write rows of the lake to staging tables, from which the broker inserts them.

Rows and the position up to which they were written commit together, so that a run continues where a
killed one stopped, and writes nothing twice.
"""

import json
from dataclasses import dataclass
from typing import Any

from pipeline.broker.database import Database
from pipeline.execution.job import Context, Refused

BATCH = 500
AHEAD = 10_000
"""Maximum staged rows that wait for the broker, so that the database stays small."""
RESTORES, ROWS = "delivery_restore", "delivery_restored"
STAGING, STAGED = "staging", "staged"
COLUMNS = (
    *("channel_id", "producer_id", "event_type", "priority", "ordering_key", "idempotency_key"),
    *("content_type", "headers", "body_bytes", "accepted_at", "due_at", "expires_at"),
    *("consumer_count", "version", "body", "body_key_id", "is_first"),
)
INSERT = (
    f"INSERT INTO {ROWS} (restore_id, message_id, consumer_id, {', '.join(COLUMNS)}) "
    f"VALUES ({', '.join(['%s'] * (3 + len(COLUMNS)))})"
)


class Stopped(Exception):
    """A person stopped the replay in the console."""


@dataclass(slots=True)
class Progress:
    """Progress of a restore."""

    state: str
    error: str
    matched: int
    staged: int
    queued: int
    skipped: int
    brought_to: int

    @property
    def waiting(self) -> int:
        """Rows staged and not yet inserted."""
        return self.staged - self.queued - self.skipped


@dataclass(frozen=True, slots=True)
class Staging:
    """The row of one restore."""

    id: int
    consumer_id: int
    options: dict[str, Any]

    def progress(self, database: Database) -> Progress:
        """Return its present state. Raises Refused and Stopped when the broker ended it."""
        (row,) = database.read(
            "SELECT state, error, matched_count, staged_count, queued_count, skipped_count, "
            f"brought_to FROM {RESTORES} WHERE id = %s",
            [self.id],
        )
        found = Progress(*row)
        if found.state == "refused":
            raise Refused(found.error)
        if found.state == "cancelled":
            raise Stopped
        return found

    def plan(self, database: Database, matched: int, key_ids: list[str]) -> None:
        """Store what the replay selects."""
        database.execute(
            f"UPDATE {RESTORES} SET matched_count = staged_count + %s, key_ids = %s WHERE id = %s",
            [matched, json.dumps(key_ids), self.id],
        )

    def bring(self, context: Context, rows: list[dict[str, Any]]) -> None:
        """Stage rows in the order of their keys, with the position. Raises as ``progress`` does."""
        database = context.database
        values = [
            (self.id, row["id"], self.consumer_id, *(_plain(row[name]) for name in COLUMNS))
            for row in rows
        ]
        with database.transaction():
            context.run.hold(database)
            # First, since the broker inserts rows under the same lock.
            moved = database.execute(
                f"UPDATE {RESTORES} SET brought_to = %s, staged_count = staged_count + %s "
                f"WHERE id = %s AND state = '{STAGING}' AND brought_to < %s",
                [rows[-1]["id"], len(rows), self.id, rows[0]["id"]],
            )
            if moved:
                database.execute_many(INSERT, values)
        if not moved:
            self.progress(database)
            raise AssertionError("rows were to be brought twice")

    def end(self, context: Context, state: str) -> None:
        """Record that all rows are staged, or that no more will be."""
        database = context.database
        with database.transaction():
            context.run.hold(database)
            finished = database.now() if state == "cancelled" else None
            database.execute(
                f"UPDATE {RESTORES} SET state = %s, finished_at = %s "
                f"WHERE id = %s AND state IN ('{STAGING}', '{STAGED}')",
                [state, finished, self.id],
            )

    def sweep(self, database: Database) -> None:
        """Delete rows that were staged and not inserted."""
        while True:
            keys = database.read(
                f"SELECT id FROM {ROWS} WHERE restore_id = %s LIMIT {BATCH}", [self.id]
            )
            if not keys:
                return
            listed = ", ".join(str(key) for (key,) in keys)
            database.execute(f"DELETE FROM {ROWS} WHERE id IN ({listed})")


def begin(context: Context, consumer_id: int, options: dict[str, Any]) -> Staging:
    """Create a restore, or continue an interrupted one for the same request.

    ``options["asked"]`` is the request; its absolute times are those of the first run.
    """
    database, run = context.database, context.run
    with database.transaction():
        run.hold(database)
        known = _unfinished(database, consumer_id, options["asked"])
        if known is not None:
            key, stored = known
            database.execute(f"UPDATE {RESTORES} SET run_id = %s WHERE id = %s", [run.id, key])
            return Staging(key, consumer_id, stored)
        who = database.read("SELECT requested_by FROM delivery_pipelinerun WHERE id = %s", [run.id])
        key = database.insert(
            f"INSERT INTO {RESTORES} (run_id, consumer_id, options, state, requested_by, reason, "
            "rate_per_second, key_ids, matched_count, staged_count, queued_count, skipped_count, "
            "brought_to, low, high, first_key, last_key, error, created_at) "
            f"VALUES (%s, %s, %s, '{STAGING}', %s, %s, %s, '[]', {', '.join('0' * 9)}, '', %s)",
            [
                *(run.id, consumer_id, json.dumps(options), who[0][0]),
                *(options.get("reason") or "", options.get("rate"), database.now()),
            ],
        )
    return Staging(key, consumer_id, options)


def _unfinished(
    database: Database, consumer_id: int, asked: dict[str, Any]
) -> tuple[int, dict[str, Any]] | None:
    """Return the last restore of the same request, unless its run saw its end.

    The broker may have finished it after the run was killed: that still serves the same request.
    """
    for key, stored, state, run_state in database.read(
        f"SELECT r.id, r.options, r.state, p.state FROM {RESTORES} r "
        "LEFT JOIN delivery_pipelinerun p ON p.id = r.run_id WHERE r.consumer_id = %s "
        f"AND r.state IN ('{STAGING}', '{STAGED}', 'finished') ORDER BY r.id DESC",
        [consumer_id],
    ):
        options = json.loads(stored)
        if options.get("asked") == asked:
            is_open = state != "finished" or run_state in ("running", "failed")
            return (int(key), options) if is_open else None
    return None


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value
