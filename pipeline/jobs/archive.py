"""Archive finished and old rows from the tables into the lake: the job `archive`.

Segments pass through states (lake/ledger.py): planned, exported, verified; then the broker deletes
their rows part by part. Each run first finishes what the last one left.
"""

import logging
from argparse import ArgumentParser
from datetime import timedelta
from threading import Event
from typing import Any

from pipeline.broker import runs
from pipeline.broker.runs import RUNS
from pipeline.contract.jobs import JOBS
from pipeline.execution.job import Context, Job
from pipeline.lake import layout, rewrite
from pipeline.lake.ledger import AMENDING, UNFINISHED, Ledger, PlannedRange
from pipeline.transforms import segments
from pipeline.transforms.segments import KINDS, Archiver

logger = logging.getLogger(__name__)

CLEANUP_AGE = timedelta(days=2)
"""How far back the job looks for files that killed runs left."""
READER_TIMEOUT = timedelta(seconds=30)
"""A run without a heartbeat for so long no longer reads files."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--dry-run", action="store_true", help="Report what would be archived; write nothing."
    )


def work(context: Context) -> dict[str, Any]:
    """Archive; returns the result."""
    folder = context.lake
    ledger = Ledger(context.database, context.run, folder)
    if context.options.dry_run:
        return _dry_run(context, ledger)
    try:
        layout.claim_folder(folder, is_used=ledger.has_files())
        _clean_up(ledger)
        amended = _amend(context, ledger)
        return {"amended": amended, **Archiver(context, ledger).run()}
    except OSError as error:
        raise layout.LakeError(f"The lake cannot be used: {error}.") from error


def _dry_run(context: Context, ledger: Ledger) -> dict[str, Any]:
    """Return what would be planned."""
    result: dict[str, Any] = {"unfinished_segments": len(ledger.in_states(*UNFINISHED))}
    ranges: list[PlannedRange] = []
    for day in segments.plan(context, ledger, Event()):
        context.report(f"planning {day.kind}", day.number, day.of)
        ranges += day.ranges
    for kind in KINDS:
        planned = [each for each in ranges if each.kind == kind]
        result |= {
            f"{kind}_segments": len(planned),
            f"{kind}_rows": sum(each.expected for each in planned),
            f"{kind}_days": len({each.day for each in planned}),
        }
    return result


def _clean_up(ledger: Ledger) -> None:
    """Complete interrupted erasures, and delete files that the ledger does not know."""
    ledger.recover()
    for path in layout.unfinished_files(
        ledger.folder, ledger.days_since(ledger.database.now() - CLEANUP_AGE)
    ):
        layout.remove(ledger.folder, path)


def _amend(context: Context, ledger: Ledger) -> int:
    """Remove from segments the rows that left them while the broker deleted the segments' rows."""
    amending = ledger.in_states(AMENDING)
    if amending and _readers_active(context):
        logger.info("%d segments wait for other runs that read their files", len(amending))
        return 0
    for place, segment in enumerate(amending):
        context.report("amending", place, len(amending))
        # A run that was stalled and lost its lock must not leave a file behind.
        ledger.require_lock()
        # An erasure may have rewritten the segment, or is doing so now: use its files.
        ledger.publish(segment)
        files = rewrite.remove_live_rows(context.database, ledger.folder, segment, context.run.id)
        if ledger.record_amendment(segment, files):
            own = [file.rows for file in files if file.table == segment.tables[0]]
            ledger.complete(segment, files, sum(own))
            runs.failpoint("after_amend")
    return len(amending)


def _readers_active(context: Context) -> bool:
    since = context.database.now() - READER_TIMEOUT
    return bool(
        context.database.read(
            f"SELECT 1 FROM {RUNS} WHERE state = 'running' AND job <> %s AND heartbeat_at > %s",
            [context.run.job, since],
        )
    )


JOB = Job("archive", JOBS["archive"].summary, add_options, work)
