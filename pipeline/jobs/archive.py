"""The job `archive`: what has finished and is old enough, from the tables into the lake.

Segments go through their states (lake/ledger.py): planned, exported, verified; then the broker
deletes their rows part by part. Each run first finishes what the last one left.
"""

import logging
from argparse import ArgumentParser
from datetime import timedelta
from threading import Event
from typing import Any

from pipeline import failpoints
from pipeline.broker.runs import RUNS
from pipeline.execution.job import Context, Job
from pipeline.lake import layout, rewriting
from pipeline.lake.ledger import AMENDING, OPEN, Ledger, Range
from pipeline.transforms import segments
from pipeline.transforms.segments import KINDS, Mover

logger = logging.getLogger(__name__)

LATE = timedelta(days=2)
"""For how long a run that was killed may have written files that nobody waits for."""
READING = timedelta(seconds=30)
"""A run without a heartbeat for so long reads nothing any more."""


def arguments(parser: ArgumentParser) -> None:
    """What can be said on the command line."""
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be archived, and write nothing"
    )


def work(context: Context) -> dict[str, Any]:
    """Do it; what it came to."""
    folder = context.lake
    ledger = Ledger(context.database, context.run, folder)
    if context.options.dry_run:
        return _told(context, ledger)
    try:
        layout.claim(folder, is_used=ledger.knows_files())
        _clear(ledger)
        amended = _amend(context, ledger)
        return {"amended": amended, **Mover(context, ledger).run()}
    except OSError as error:
        raise layout.Unusable(f"The lake cannot be used: {error}.") from error


def _told(context: Context, ledger: Ledger) -> dict[str, Any]:
    """What would be planned."""
    told: dict[str, Any] = {"unfinished_segments": len(ledger.having(*OPEN))}
    ranges: list[Range] = []
    for day in segments.plan(context, ledger, Event()):
        context.report(f"planning {day.kind}", day.number, day.of)
        ranges += day.ranges
    for kind in KINDS:
        mine = [each for each in ranges if each.kind == kind]
        told |= {
            f"{kind}_segments": len(mine),
            f"{kind}_rows": sum(each.expected for each in mine),
            f"{kind}_days": len({each.day for each in mine}),
        }
    return told


def _clear(ledger: Ledger) -> None:
    """Finish what a run that ended early wrote down; take away what nobody knows of."""
    ledger.recover()
    for path in layout.written_aside(
        ledger.folder, ledger.days_since(ledger.database.now() - LATE)
    ):
        layout.remove(ledger.folder, path)


def _amend(context: Context, ledger: Ledger) -> int:
    """Take back what left a segment while it was being deleted."""
    amending = ledger.having(AMENDING)
    if amending and _readers_active(context):
        logger.info("%d segments wait for other runs that read their files", len(amending))
        return 0
    for place, segment in enumerate(amending):
        context.report("amending", place, len(amending))
        # Who was stalled meanwhile leaves no file behind that nobody waits for.
        ledger.hold()
        # Written anew by an erasure that was killed, or is at work this moment: those are its rows.
        ledger.publish(segment)
        files = rewriting.rewrite(context.database, ledger.folder, segment, context.run.id)
        if ledger.amended(segment, files):
            own = [file.rows for file in files if file.table == segment.tables[0]]
            ledger.ended(segment, files, sum(own))
            failpoints.reach("after_amend")
    return len(amending)


def _readers_active(context: Context) -> bool:
    since = context.database.now() - READING
    return bool(
        context.database.read(
            f"SELECT 1 FROM {RUNS} WHERE state = 'running' AND job <> %s AND heartbeat_at > %s",
            [context.run.job, since],
        )
    )


JOB = Job("archive", "Move what has finished and is old enough into the lake.", arguments, work)
