"""Replay messages from the lake and from the tables to a consumer.

The job writes them to staging tables; the broker inserts them at the requested rate.
"""

import json
import time
from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame

from pipeline.broker import runs
from pipeline.contract.jobs import JOBS
from pipeline.execution import arguments
from pipeline.execution.job import Context, Job, JobError
from pipeline.transforms import selection
from pipeline.transforms.selection import ReplayRequest, Restore, Selection, SelectionCount

POLL_S = 0.3
PART_ROWS = 2000
"""Rows with bodies that the driver holds at once."""
REQUEST_OPTIONS = (
    *("consumer", "since", "until", "event_type", "ordering_key", "message"),
    *("only_dead", "only_missing"),
)
"""Options that identify a replay: a run with the same ones continues an interrupted replay."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options."""
    when = arguments.WHEN
    add = parser.add_argument
    add(
        "--consumer",
        metavar="CHANNEL/CLIENT_ID",
        required=True,
        help="The consumer that gets the messages.",
    )
    add("--since", metavar="WHEN", help=f"Only messages accepted since then: {when}.")
    add("--until", metavar="WHEN", help="Only messages accepted before then.")
    add("--event-type", metavar="PATTERN", action="append", help="A name, or order.* (repeatable).")
    add("--ordering-key", metavar="KEY", action="append", help="An ordering key (repeatable).")
    add("--message", metavar="ID", action="append", help="A message: msg_... (repeatable).")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--only-dead",
        action="store_true",
        help="Only messages with a delivery to this consumer, none of which succeeded.",
    )
    which.add_argument(
        "--only-missing",
        action="store_true",
        help="Only messages without a delivery to this consumer, as it registered later.",
    )
    add("--rate", metavar="N", help="Maximum messages per second (default: no limit).")
    add("--reason", metavar="TEXT", help="Reason in the audit log.")
    add("--dry-run", action="store_true", help="Count what would be sent; send nothing.")


def work(context: Context) -> dict[str, Any]:
    """Count the messages, write them to the staging tables, and wait for the broker."""
    consumer_id, channel_id, event_types = _consumer(context)
    request = {name: getattr(context.options, name) for name in REQUEST_OPTIONS}
    now = context.database.now()
    bound = context.datasets.readable_until()
    since = arguments.instant_or_ago(request["since"], now) if request["since"] else None
    until = (
        min(arguments.instant_or_ago(request["until"], now), bound) if request["until"] else bound
    )
    if context.options.dry_run:
        wanted = _replay_request(request, consumer_id, channel_id, event_types, since, until)
        context.report("counting")
        selected = Selection(context.datasets, wanted, now)
        try:
            return _result(selected.count())
        finally:
            selected.unpersist()
    options: dict[str, Any] = {
        "asked": request,
        "since": since and since.isoformat(),
        "until": until.isoformat(),
        "reason": context.options.reason,
        "rate": _rate(context.options.rate),
    }
    restore = selection.begin_restore(context, consumer_id, options)
    # A continued replay keeps the time range of its first run.
    since = restore.options["since"] and datetime.fromisoformat(restore.options["since"])
    until = datetime.fromisoformat(restore.options["until"])
    wanted = _replay_request(request, consumer_id, channel_id, event_types, since, until)
    selected = Selection(context.datasets, wanted, now)
    try:
        counted = _stage_all(context, restore, selected)
        _wait(context, restore)
    except selection.ReplayStopped:
        restore.discard(context.database)
        raise JobError("It was stopped on the console: nothing more is sent.") from None
    except Exception:
        if _was_cancelled(context.run):
            restore.end(context, "cancelled")
            restore.discard(context.database)
        raise
    finally:
        selected.unpersist()
    done = restore.progress(context.database)
    return {**counted, "restore": restore.id, "queued": done.queued, "left_out": done.skipped}


def _consumer(context: Context) -> tuple[int, int, list[str]]:
    channel, _, client_id = context.options.consumer.partition("/")
    rows = context.database.read(
        "SELECT c.id, c.channel_id, c.event_types, c.state FROM channels_app_consumer c "
        "JOIN channels_app_channel h ON h.id = c.channel_id "
        "WHERE h.slug = %s AND c.client_id = %s",
        [channel, client_id],
    )
    if not rows:
        raise JobError(f"There is no consumer {client_id!r} on a channel {channel!r}.")
    consumer_id, channel_id, event_types, state = rows[0]
    if state == "retired":
        raise JobError("The consumer was removed: nothing is sent to it any more.")
    return consumer_id, channel_id, json.loads(event_types)


def _replay_request(
    request: dict[str, Any],
    consumer_id: int,
    channel_id: int,
    event_types: list[str],
    since: datetime | None,
    until: datetime,
) -> ReplayRequest:
    if since and since >= until:
        raise JobError("--since must lie before --until.")
    return ReplayRequest(
        consumer_id=consumer_id,
        channel_id=channel_id,
        own_event_types=event_types,
        since=since,
        until=until,
        which=_which(request),
        event_types=request["event_type"] or [],
        ordering_keys=request["ordering_key"] or [],
        keys=[arguments.message_key(text) for text in request["message"] or []],
    )


def _which(request: dict[str, Any]) -> str:
    if request["only_dead"]:
        return selection.DEAD
    return selection.MISSING if request["only_missing"] else selection.ALL


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e6:
        raise JobError(f"{text!r} is no rate: write how many a second, like 50.")
    return rate


def _stage_all(context: Context, restore: Restore, selected: Selection) -> dict[str, Any]:
    done = restore.progress(context.database)
    if done.state != selection.STAGING:
        return {"messages": done.matched}
    context.report("counting")
    counted = selected.count()
    if counted.without_body:
        restore.end(context, "cancelled")
        restore.discard(context.database)
        raise JobError(
            f"{counted.without_body:,} of these {counted.messages:,} messages are in the lake "
            "without their bodies (HOOKSTATION_LAKE_BODIES=omit): they cannot be sent again."
        )
    rows = selected.with_bodies(done.brought_to)
    remaining = rows.count() if done.brought_to else counted.messages
    restore.plan(context.database, remaining, counted.key_ids)
    _stage(context, restore, rows, remaining)
    restore.end(context, selection.STAGED)
    return _result(counted)


def _stage(context: Context, restore: Restore, rows: DataFrame, remaining: int) -> None:
    parts = max(1, -(-remaining // PART_ROWS))
    ordered = rows.repartitionByRange(parts, "id").sortWithinPartitions("id")
    batch: list[dict[str, Any]] = []
    for row in ordered.toLocalIterator():
        batch.append(row.asDict())
        if len(batch) == selection.BATCH_ROWS:
            _flush(context, restore, batch)
            batch = []
    if batch:
        _flush(context, restore, batch)


def _flush(context: Context, restore: Restore, batch: list[dict[str, Any]]) -> None:
    for row in batch:
        row["body_key_id"] = row["body_key_id"] or ""
    while True:
        now = restore.progress(context.database)
        context.report("staging messages", now.staged, now.matched, now.staged)
        if now.waiting < selection.MAX_STAGED:
            break
        _pause()
    restore.stage(context, batch)


def _wait(context: Context, restore: Restore) -> None:
    """Wait until the broker has inserted all staged rows."""
    while True:
        now = restore.progress(context.database)
        context.report(
            "waiting for the broker to queue them", now.queued + now.skipped, now.staged, now.staged
        )
        if now.state == "finished":
            return
        _pause()


def _pause() -> None:
    time.sleep(POLL_S)


def _result(counted: SelectionCount) -> dict[str, Any]:
    result: dict[str, Any] = {"messages": counted.messages, "bytes": counted.bytes}
    for name, at in (("first", counted.first), ("last", counted.last)):
        if at is not None:
            # Spark returns instants without a zone, in this machine's.
            result[name] = at.astimezone(UTC).isoformat()
    if counted.without_body:
        result["without_body"] = counted.without_body
    return result


def _was_cancelled(run: runs.Run) -> bool:
    try:
        run.check()
    except runs.RunCancelled:
        return True
    except runs.LockLost:
        return False
    return False


JOB = Job("replay", JOBS["replay"].summary, add_options, work)
