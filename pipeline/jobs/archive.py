"""The job `archive`: what has finished and is old enough, from the tables into the lake.

Segments go through their states (lake/ledger.py): planned, exported, verified; then the broker
deletes their rows part by part. Each run first finishes what the last one left.
"""

import json
import logging
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta
from typing import Any

from pyspark import SparkContext

from pipeline import failpoints
from pipeline.broker.database import Database
from pipeline.broker.runs import RUNS
from pipeline.lake import amend, export, places, planning, ripe
from pipeline.lake.ledger import (
    AMENDING,
    EXPORTED,
    OPEN,
    PLANNED,
    File,
    Ledger,
    Range,
    Segment,
)
from pipeline.running.job import Context, Job

logger = logging.getLogger(__name__)

PART_ROWS = 1_000
"""What the broker deletes in one transaction."""
LATE = timedelta(days=2)
"""For how long a run that was killed may have written files that nobody waits for."""
READING = timedelta(seconds=30)
"""A run without a heartbeat for so long reads nothing any more."""
KINDS = (ripe.DELIVERIES, ripe.MESSAGES)


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
        return _told(ledger, _plan(context, ledger))
    try:
        places.claim(folder, is_used=ledger.knows_files())
        _clear(ledger)
        amended = _amend(context, ledger)
        ledger.plan(_plan(context, ledger))
        failpoints.reach("after_plan")
        exported = _export(context, ledger)
        verified, differ = _verify(context, ledger)
    except OSError as error:
        raise places.Unusable(f"The lake cannot be used: {error}.") from error
    rows = sum(segment.rows for segment in verified)
    return {
        "amended": amended,
        "exported": exported,
        "verified": len(verified),
        "to_do_again": differ,
        "rows": rows,
    }


def _plan(context: Context, ledger: Ledger) -> list[Range]:
    """What is ripe and in no segment yet."""
    limits = ripe.cutoffs(context.database, context.settings)
    under_way = ledger.having(*OPEN)
    is_due = any(segment.state in (PLANNED, EXPORTED) for segment in under_way)
    # Else it has rows of segments that came to their end, and they would go to the lake once more.
    context.catch_up()
    found: list[Range] = []
    # From the replica if there is one: these numbers only say how large segments become.
    database = Database(context.settings.bulk_url)
    try:
        for kind in KINDS:
            days = planning.days(database, kind, limits)
            for place, day in enumerate(days):
                context.report(f"planning {kind}", place, len(days))
                found += planning.of_day(database, kind, day, limits, under_way)
                if (found or is_due) and not context.options.dry_run:
                    # The database counts the other days meanwhile.
                    context.begin_workers()
    finally:
        database.close()
    return found


def _told(ledger: Ledger, ranges: Sequence[Range]) -> dict[str, Any]:
    told: dict[str, Any] = {"unfinished_segments": len(ledger.having(*OPEN))}
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
    for path in places.written_aside(
        ledger.folder, ledger.days_since(ledger.database.now() - LATE)
    ):
        places.remove(ledger.folder, path)


def _amend(context: Context, ledger: Ledger) -> int:
    """Take back what left a segment while it was being deleted."""
    segments = ledger.having(AMENDING)
    if segments and _somebody_reads(context):
        logger.info("%d segments wait for other runs that read their files", len(segments))
        return 0
    for place, segment in enumerate(segments):
        context.report("amending", place, len(segments))
        # Who was stalled meanwhile leaves no file behind that nobody waits for.
        ledger.hold()
        # Written anew by an erasure that was killed, or is at work this moment: those are its rows.
        ledger.publish(segment)
        files = amend.rewrite(context.database, ledger.folder, segment, context.run.id)
        if ledger.amended(segment, files):
            own = [file.rows for file in files if file.table == segment.tables[0]]
            ledger.ended(segment, files, sum(own))
            failpoints.reach("after_amend")
    return len(segments)


def _somebody_reads(context: Context) -> bool:
    since = context.database.now() - READING
    return bool(
        context.database.read(
            f"SELECT 1 FROM {RUNS} WHERE state = 'running' AND job <> %s AND heartbeat_at > %s",
            [context.run.job, since],
        )
    )


def _export(context: Context, ledger: Ledger) -> int:
    """Write the files of what is planned, several at once; each is committed as it comes."""
    count = 0
    for segment, manifest in _on_executors(context, ledger.having(PLANNED), "exporting"):
        files = [File(**file) for file in manifest["files"]]
        if ledger.exported(segment, files, manifest["parts"]):
            count += 1
    return count


def _verify(context: Context, ledger: Ledger) -> tuple[list[Segment], int]:
    """Have files read back and compared with what was written and with the tables."""
    verified: list[Segment] = []
    segments = ledger.having(EXPORTED)
    for segment, answer in _on_executors(context, segments, "checking"):
        if "differs" in answer:
            logger.warning("segment %d again: %s", segment.id, answer["differs"])
            ledger.again(segment)
        elif ledger.verified(segment):
            verified.append(segment)
    return verified, len(segments) - len(verified)


def _on_executors(
    context: Context, segments: Sequence[Segment], stage: str
) -> Iterator[tuple[Segment, dict[str, Any]]]:
    """Each segment's answer, as they come. Raises Unusable for what a person must mend; Lost.

    One job of Spark for each: toLocalIterator would run two at a time, and collect would keep all
    answers back until the last one.
    """
    if not segments:
        return
    asked = export.export if stage == "exporting" else export.check
    workers, rows = context.workers, 0
    with ThreadPoolExecutor(context.settings.partitions) as pool:
        futures = {
            pool.submit(_ask, workers, asked, _task(context, each)): each for each in segments
        }
        try:
            for place, future in enumerate(as_completed(futures)):
                segment, answer = futures[future], future.result()
                if "error" in answer:
                    with context.database.transaction():
                        context.run.hold(context.database)  # else who took over cleared it away
                    raise places.Unusable(answer["error"])
                rows += sum(file["rows"] for file in answer.get("files", ()))
                yield segment, answer
                context.report(stage, place + 1, len(segments), rows or None)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ask(workers: SparkContext, asked: Callable[[str], str], task: str) -> dict[str, Any]:
    (said,) = workers.parallelize([task], 1).map(asked).collect()
    answer: dict[str, Any] = json.loads(said)
    return answer


def _task(context: Context, segment: Segment) -> str:
    paths = {table: places.path_of(table, segment.day, segment.id) for table in segment.tables}
    return json.dumps(
        {
            "kind": segment.kind,
            "low": segment.low,
            "high": segment.high,
            "cutoffs": segment.limits.as_json(),
            "tables": segment.tables,
            "files": [file.as_json() for file in segment.files],
            "lake": str(context.lake),
            "path": paths,
            "tmp": {table: places.aside(path, context.run.id) for table, path in paths.items()},
            "keep_bodies": context.settings.keep_bodies,
            "part_rows": PART_ROWS,
        }
    )


JOB = Job("archive", "Move what has finished and is old enough into the lake.", arguments, work)
