"""The job `archive`: what has finished and is old enough, from the tables into the lake.

Segments go through their states (lake/ledger.py): planned, exported, verified; then the broker
deletes their rows part by part. Each run first finishes what the last one left.
"""

import json
import logging
from argparse import ArgumentParser
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
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
Asked = Callable[[str], str]
"""Of an executor: export.export or export.check."""
Step = tuple[Asked, Segment]


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
        return {"amended": amended, **_move(context, ledger)}
    except OSError as error:
        raise places.Unusable(f"The lake cannot be used: {error}.") from error


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


def _move(context: Context, ledger: Ledger) -> dict[str, int]:
    """Have each segment's files written, and compared with the tables right after that.

    The database has a segment's rows in memory then; of large tables it has none of them left when
    the last segment is written.
    """
    came = {"exported": 0, "verified": 0, "to_do_again": 0, "rows": 0}
    waiting: deque[Step] = deque((export.check, each) for each in ledger.having(EXPORTED))
    waiting.extend((export.export, each) for each in ledger.having(PLANNED))
    ended, total, rows = 0, len(waiting), 0
    for asked, segment, answer in _on_executors(context, waiting):
        is_over = True
        if asked is export.export:
            files = [File(**file) for file in answer["files"]]
            rows += sum(file.rows for file in files)
            if moved := ledger.exported(segment, files, answer["parts"]):
                came["exported"] += 1
                if files:
                    waiting.appendleft((export.check, moved))
                    is_over = False
        elif "differs" in answer:
            logger.warning("segment %d again: %s", segment.id, answer["differs"])
            ledger.again(segment)
            came["to_do_again"] += 1
        elif ledger.verified(segment):
            came["verified"] += 1
            came["rows"] += segment.rows
        ended += is_over
        context.report("archiving", ended, total, rows or None)
    return came


def _on_executors(
    context: Context, waiting: deque[Step]
) -> Iterator[tuple[Asked, Segment, dict[str, Any]]]:
    """Each step's answer, as they come; what is put in front meanwhile begins next.

    One job of Spark for each: toLocalIterator would run two at a time, and collect would keep all
    answers back until the last one. Raises Unusable for what a person must mend; Lost.
    """
    if not waiting:
        return
    workers, at_once = context.workers, context.settings.partitions
    begun: dict[Future[dict[str, Any]], Step] = {}
    with ThreadPoolExecutor(at_once) as pool:
        try:
            while waiting or begun:
                while waiting and len(begun) < at_once:
                    asked, segment = waiting.popleft()
                    future = pool.submit(_ask, workers, asked, _task(context, segment))
                    begun[future] = asked, segment
                for future in wait(begun, return_when=FIRST_COMPLETED).done:
                    asked, segment = begun.pop(future)
                    answer = future.result()
                    if "error" in answer:
                        with context.database.transaction():
                            context.run.hold(context.database)  # else who took over cleared it away
                        raise places.Unusable(answer["error"])
                    yield asked, segment, answer
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ask(workers: SparkContext, asked: Asked, task: str) -> dict[str, Any]:
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
