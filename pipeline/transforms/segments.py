"""Plan, write and compare segments, each as soon as possible, in one loop.

While executors write and compare, a thread counts the next days, because a database that runs one
query at a time leaves cores idle. A segment is compared right after it is written, while the
database has its rows in memory.
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Any, NamedTuple

from pyspark import SparkContext

from pipeline.broker import runs
from pipeline.broker.database import Database
from pipeline.execution.job import Context
from pipeline.lake import eligible, layout, planning, writer
from pipeline.lake.ledger import EXPORTED, PLANNED, UNFINISHED, File, Ledger, PlannedRange, Segment

logger = logging.getLogger(__name__)

PART_ROWS = 1_000
"""Rows that the broker deletes in one transaction."""
PART_BYTES = 2 << 20
"""Bytes of bodies and responses that it deletes in one: a full disk has room for little more."""
KINDS = (eligible.MESSAGES, eligible.DELIVERIES)
"""In this order: a message is eligible when its deliveries are gone, and the broker deletes this
run's deliveries as soon as they are verified. Messages compared after that would differ."""
POLL_S = 0.5
"""Seconds until a stop is noticed."""
MAX_WAITING_PER_EXECUTOR = 4
"""Planning pauses while so many segments per executor wait."""
ExecutorCall = Callable[[str], str]
"""A call on an executor: writer.export or writer.check."""


class PlannedDay(NamedTuple):
    """Eligible rows of a day that are in no segment yet."""

    kind: str
    number: int
    """Its number, from 1 on; ``count`` is the number of days."""
    of: int
    ranges: list[PlannedRange]


Plan = Generator[PlannedDay, None, None]


def plan(context: Context, ledger: Ledger, stop: Event) -> Plan:
    """Yield days, oldest first, until ``stop`` is set; runs in one thread at a time."""
    limits = eligible.cutoffs(context.database, context.settings)
    unfinished = ledger.in_states(*UNFINISHED)
    # Otherwise a lagging replica has rows of completed segments, which would be archived twice.
    context.catch_up()
    return _plan_days(context.settings.read_url, limits, unfinished, stop)


class Archiver:
    """Moves segments from state to state. It alone writes to the ledger, from one thread."""

    def __init__(self, context: Context, ledger: Ledger) -> None:
        self._context, self._ledger = context, ledger
        self._stop = Event()
        self._days = plan(context, ledger, self._stop)
        self._waiting: deque[tuple[ExecutorCall, Segment]] = deque()
        self._waiting.extend((writer.check, each) for each in ledger.in_states(EXPORTED))
        self._waiting.extend((writer.export, each) for each in ledger.in_states(PLANNED))
        self._running: dict[Future[dict[str, Any]], tuple[ExecutorCall, Segment]] = {}
        self._planning: Future[PlannedDay | None] | None = None
        self._is_planned = False
        self._total, self._ended, self._rows = len(self._waiting), 0, 0
        self._counts = {"exported": 0, "verified": 0, "to_do_again": 0, "rows": 0}

    def run(self) -> dict[str, int]:
        """Process all segments; returns the result. Raises LockLost, LakeError."""
        self._context.report(f"planning {KINDS[0]}")
        counter = ThreadPoolExecutor(1, "planning")
        executors = ThreadPoolExecutor(self._context.settings.partitions, "archiving")
        try:
            while pending := self._begin(counter, executors):
                done = wait(pending, POLL_S, FIRST_COMPLETED).done
                self._context.run.check()
                if self._planning in done:
                    day, self._planning = self._planning.result(), None
                    self._add_planned(day)
                for future in done & self._running.keys():
                    self._handle_result(*self._running.pop(future), future.result())
        finally:
            self._stop.set()
            executors.shutdown(wait=True, cancel_futures=True)
            # A database connection belongs to its thread.
            counter.submit(self._days.close)
            counter.shutdown(wait=True)
        return self._counts

    def _begin(
        self, counter: ThreadPoolExecutor, executors: ThreadPoolExecutor
    ) -> list[Future[Any]]:
        """Start the next calls; returns all futures to wait for."""
        parallelism = self._context.settings.partitions
        if (
            not (self._planning or self._is_planned)
            and len(self._waiting) < MAX_WAITING_PER_EXECUTOR * parallelism
        ):
            self._planning = counter.submit(next, self._days, None)
        starting = self._context.start_workers() if self._waiting else None
        if starting is None or starting.done():
            while self._waiting and len(self._running) < parallelism:
                call, segment = self._waiting.popleft()
                task = _task(self._context, segment)
                # A Spark job each: toLocalIterator would run two at a time, and collect would hold
                # all results until the last one.
                future = executors.submit(_call_executor, self._context.workers, call, task)
                self._running[future] = call, segment
            starting = None
        return [future for future in (*self._running, self._planning, starting) if future]

    def _add_planned(self, day: PlannedDay | None) -> None:
        if day is None:
            self._is_planned = True
            self._report()
            return
        self._context.report(f"planning {day.kind}", day.number, day.of, self._rows or None)
        if not day.ranges:
            return
        planned = self._ledger.plan(day.ranges)
        runs.failpoint("after_plan")
        self._total += len(planned)
        self._waiting.extend((writer.export, each) for each in planned)

    def _handle_result(self, call: ExecutorCall, segment: Segment, result: dict[str, Any]) -> None:
        if "error" in result:
            self._ledger.require_lock()  # a run that took over may have deleted it
            raise layout.LakeError(result["error"])
        is_over = True
        if call is writer.export:
            is_over = not self._record_export(segment, result)
        elif "differs" in result:
            logger.warning("segment %d again: %s", segment.id, result["differs"])
            self._ledger.plan_again(segment)
            self._counts["to_do_again"] += 1
        elif self._ledger.record_verification(segment):
            self._counts["verified"] += 1
            self._counts["rows"] += segment.rows
        self._ended += is_over
        self._report()

    def _report(self) -> None:
        """Report progress, with the plan's until the plan is complete."""
        if self._is_planned:
            self._context.report("archiving", self._ended, self._total, self._rows or None)
        else:
            run = self._context.run
            self._context.report(run.stage, run.done, run.total, self._rows or None)

    def _record_export(self, segment: Segment, manifest: dict[str, Any]) -> bool:
        """Record an export; returns whether to compare it next, while its rows are in memory."""
        files = [File(**file) for file in manifest["files"]]
        self._rows += sum(file.rows for file in files)
        moved = self._ledger.record_export(segment, files, manifest["parts"])
        if moved is None:
            return False
        self._counts["exported"] += 1
        if files:
            self._waiting.appendleft((writer.check, moved))
        return bool(files)


def _plan_days(
    address: str, limits: eligible.Cutoffs, unfinished: list[Segment], stop: Event
) -> Plan:
    # The replica if there is one, since these numbers only determine the size of segments.
    database = Database(address)
    try:
        for kind in KINDS:
            days = planning.days(database, kind, limits)
            for number, day in enumerate(days, 1):
                planned = []
                for part in planning.segments_of_day(database, kind, day, limits, unfinished):
                    if stop.is_set():
                        return
                    planned.append(part)
                yield PlannedDay(kind, number, len(days), planned)
    finally:
        database.close()


def _task(context: Context, segment: Segment) -> str:
    paths = {table: layout.path_of(table, segment.day, segment.id) for table in segment.tables}
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
            "tmp": {
                table: layout.staging_path(path, context.run.id) for table, path in paths.items()
            },
            "keep_bodies": context.settings.keep_bodies,
            "part_rows": PART_ROWS,
            "part_bytes": PART_BYTES,
        }
    )


def _call_executor(workers: SparkContext, call: ExecutorCall, task: str) -> dict[str, Any]:
    (text,) = workers.parallelize([task], 1).map(call).collect()
    result: dict[str, Any] = json.loads(text)
    return result
