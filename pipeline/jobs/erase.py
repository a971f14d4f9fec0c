"""Erase a person's data from the lake, and issue a receipt.

The broker's tables are not changed: run the job again after their rows have been archived.
"""

import hashlib
import json
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import functions as f

from pipeline.broker import runs, tables
from pipeline.broker.database import Database
from pipeline.broker.runs import RUNS
from pipeline.contract.jobs import JOBS, digest
from pipeline.execution import arguments
from pipeline.execution.job import Context, Job, JobError
from pipeline.lake import rewrite
from pipeline.lake.eligible import MESSAGES
from pipeline.lake.ledger import UNFINISHED, Ledger, Segment
from pipeline.lake.rewrite import Receipts
from pipeline.transforms.reconcile import SKEW

SUBJECT_OPTIONS = tuple(sorted(JOBS["erase"].private))
"""Options that identify the person."""
MAX_ROWS = 2_000_000
"""Maximum messages of one erasure: the driver holds their keys in memory."""
ERASURES = "delivery_erasure"
COUNTS = {"messages": "message_count", "deliveries": "delivery_count", "attempts": "attempt_count"}


def add_options(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add(
        "--ordering-key",
        metavar="KEY",
        action="append",
        help="Messages with this ordering key (repeatable).",
    )
    add(
        "--idempotency-key",
        metavar="KEY",
        action="append",
        help="Messages with this idempotency key (repeatable).",
    )
    add("--message", metavar="ID", action="append", help="A message: msg_... (repeatable).")
    add("--reason", metavar="TEXT", help="Reason on the receipt. Do not name the person.")
    add("--dry-run", action="store_true", help="Count what would be erased; write nothing.")


def work(context: Context) -> dict[str, Any]:
    """Find the person's rows, rewrite the files without them, and issue a receipt."""
    folder, database = context.lake, context.database
    subject = {name: sorted(getattr(context.options, name) or []) for name in SUBJECT_OPTIONS}
    if not any(subject.values()):
        raise JobError("Pass at least one of --ordering-key, --idempotency-key and --message.")
    ledger = Ledger(database, context.run, folder)
    if not context.options.dry_run:
        rewrite.recover(ledger)
    context.report("finding messages")
    keys = _find_messages(context, subject)
    context.report("finding files", 0, 0, len(keys))
    files_by_table = _find_rows(context, keys)
    remaining = rewrite.count_in_tables(database, keys)
    result: dict[str, Any] = {
        **{name: sum(files_by_table[name].values()) for name in COUNTS},
        "files": sum(len(files) for files in files_by_table.values()),
        "left_in_tables": remaining,
    }
    if context.options.dry_run:
        return result
    paths = {path for files in files_by_table.values() for path in files}
    busy = {
        file.path for segment in ledger.in_states(*UNFINISHED) for file in segment.files
    } & paths
    waiting = _messages_in(context, keys, busy) if busy else set()
    free = [key for key in keys if key not in waiting]
    receipt, done = _open_receipt(context, subject)
    segments = rewrite.segments_with(ledger, paths)
    for place, segment in enumerate(segments):
        context.report("rewriting files", place, len(segments))
        segment_keys = free if segment.kind == MESSAGES else keys
        record = partial(_record, database, receipt, segment, segment_keys, done)
        done += rewrite.erase(ledger, segment, segment_keys, context.run.id, record)
    runs.failpoint("before_receipt")
    _close_receipt(context, receipt, remaining)
    if busy:
        result |= {"busy_files": len(busy), "waiting_messages": len(waiting)}
    return result | {"receipt": receipt, "files": len(done)}


def _find_messages(context: Context, subject: dict[str, list[str]]) -> list[int]:
    """Return the keys of the person's messages, in the lake and in the tables."""
    names = ["id", "ordering_key", "idempotency_key"]
    until = context.database.now() + timedelta(days=1)
    rows = context.datasets.messages(None, until, names)
    condition = f.lit(False)
    for name in ("ordering_key", "idempotency_key"):
        if subject[name]:
            # Digests, because Spark shows its plans in errors, on its pages and in its event log.
            digests = [hashlib.sha256(key.encode()).hexdigest() for key in subject[name]]
            condition |= f.sha2(f.col(name), 256).isin(digests)
    keys = set()
    if subject["ordering_key"] or subject["idempotency_key"]:
        rows = rows.where(condition).select("id").distinct().limit(MAX_ROWS + 1)
        keys = {row["id"] for row in rows.collect()}
    if len(keys) > MAX_ROWS:
        raise JobError(f"These are more than {MAX_ROWS:,} messages: ask for fewer at a time.")
    return sorted(keys | {arguments.message_key(text) for text in subject["message"]})


def _find_rows(context: Context, keys: Sequence[int]) -> dict[str, dict[str, int]]:
    """Return by table the lake's files with rows of these messages, and the number of rows."""
    wanted = context.spark.createDataFrame([(key,) for key in keys], "key bigint")
    files_by_table: dict[str, dict[str, int]] = {name: {} for name in rewrite.MESSAGE_COLUMNS}
    for table, owner in rewrite.MESSAGE_COLUMNS.items():
        since = tables.created_at(keys[0]) - SKEW if keys else tables.EPOCH
        paths = context.datasets.paths(tables.BY_NAME[table], since) if keys else []
        if not paths:
            continue
        rows = context.spark.read.parquet(*paths)
        rows = rows.select(f.col(owner).alias("key"), f.input_file_name().alias("file"))
        rows = rows.join(f.broadcast(wanted), "key", "left_semi").groupBy("file").count()
        for file, number in rows.collect():
            # Spark's URL, with %20 for a space.
            path = Path(unquote(urlsplit(file).path))
            files_by_table[table][str(path.relative_to(context.lake))] = number
    return files_by_table


def _messages_in(context: Context, keys: Sequence[int], busy: set[str]) -> set[int]:
    """Return messages with rows in skipped files.

    These messages stay too, since they lead to the rows.
    """
    wanted = context.spark.createDataFrame([(key,) for key in keys], "key bigint")
    messages: set[int] = set()
    for table, owner in rewrite.MESSAGE_COLUMNS.items():
        if paths := [str(context.lake / path) for path in busy if path.startswith(f"{table}/")]:
            rows = context.spark.read.parquet(*paths).select(f.col(owner).alias("key"))
            rows = rows.join(f.broadcast(wanted), "key", "left_semi").distinct()
            messages |= {row["key"] for row in rows.collect()}
    return messages


def _open_receipt(context: Context, subject: dict[str, list[str]]) -> tuple[int, Receipts]:
    """Return the receipt and its files so far; it may be an interrupted run's receipt."""
    database, run = context.database, context.run
    subject_digest = digest(subject, SUBJECT_OPTIONS)
    with database.transaction():
        run.require_lock(database)
        unfinished = database.read(
            f"SELECT id, files FROM {ERASURES} WHERE digest = %s AND finished_at IS NULL",
            [subject_digest],
        )
        if unfinished:
            return int(unfinished[0][0]), json.loads(unfinished[0][1])
        requester = database.read(f"SELECT requested_by FROM {RUNS} WHERE id = %s", [run.id])
        key = database.insert(
            f"INSERT INTO {ERASURES} (run_id, digest, requested_by, reason, started_at, "
            "message_count, delivery_count, attempt_count, left_count, files) "
            "VALUES (%s, %s, %s, %s, %s, 0, 0, 0, 0, '[]')",
            [run.id, subject_digest, requester[0][0], context.options.reason or "", database.now()],
        )
    return key, []


def _record(
    database: Database,
    receipt: int,
    segment: Segment,
    keys: Sequence[int],
    before: Receipts,
    added: Receipts,
) -> None:
    """Record what a segment loses, in the transaction that commits the loss."""
    done = [*before, *added]
    counts = [sum(file["rows"] for file in done if file["table"] == table) for table in COUNTS]
    database.execute(
        f"UPDATE {ERASURES} SET message_count = %s, delivery_count = %s, attempt_count = %s, "
        "files = %s WHERE id = %s",
        [*counts, json.dumps(done), receipt],
    )
    if segment.kind == MESSAGES:
        # The lake no longer has these messages, so the tables' rows are to be archived.
        segment_keys = [key for key in keys if segment.low <= key < segment.high]
        for start in range(0, len(segment_keys), 500):
            listed = ", ".join(str(key) for key in segment_keys[start : start + 500])
            database.execute(f"DELETE FROM delivery_restoredmessage WHERE message_id IN ({listed})")


def _close_receipt(context: Context, receipt: int, remaining: int) -> None:
    """Complete the receipt."""
    database, run = context.database, context.run
    with database.transaction():
        run.require_lock(database)
        database.execute(
            f"UPDATE {ERASURES} SET finished_at = %s, left_count = %s WHERE id = %s",
            [database.now(), remaining, receipt],
        )


JOB = Job(
    "erase",
    JOBS["erase"].summary,
    add_options,
    work,
    private=SUBJECT_OPTIONS,
)
