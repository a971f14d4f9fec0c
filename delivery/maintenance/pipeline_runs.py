"""Request, start and end runs of the pipeline, each in its own process.

All changes are compare-and-set on the run's row, which the process itself updates as well
(pipeline/broker/runs.py).

A run's process is independent of the broker: it has its own session, continues when the broker
stops, and records its own progress. A thread waits for its end, so that no zombie process remains
and a process that dies before its first record is reported at once.
"""

import importlib.util
import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import Error as DatabaseFailure
from django.db import connections, transaction
from django.db.models import Max, QuerySet

from channels_app.access.principal import Principal
from channels_app.core.errors import Refused
from channels_app.database import clock
from channels_app.models import AuditEntry
from delivery.conf import HOST, conf
from delivery.models import PipelineRun, PipelineSchedule
from delivery.processes import task_queue
from pipeline.contract.jobs import JOBS
from pipeline.contract.results import ExitCode

logger = logging.getLogger(__name__)
State = PipelineRun.State
Mode = PipelineSchedule.Mode
SCHEDULE = "schedule"
"""Recorded as the requester of scheduled runs."""
SILENCE = timedelta(seconds=60)
"""A run without a heartbeat for this long is dead. Its process stops itself earlier."""
BEGINNING = timedelta(minutes=3)
"""Time between a process's start and its first heartbeat: loading packages may take long."""
RETENTION = timedelta(days=90)
BATCH = 200
GONE = "Its process ended without a result."
NICENESS = 5
"""Gives delivery precedence."""
TAIL = 2000
"""Bytes of a process's output that are kept if it could not record an error itself."""
PACKAGE = "pyspark"
PROBE = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({PACKAGE!r}) is None)"
PROBE_S = 30


def ask(
    job: str, options: Mapping[str, Any], principal: Principal, *, now: datetime
) -> PipelineRun:
    """Request a run. Raises Refused if one of that job is waiting already."""
    if job not in JOBS:
        raise Refused(f"There is no job {job}.")
    with transaction.atomic():
        waiting = PipelineRun.objects.filter(job=job, state=State.QUEUED).first()
        if waiting is not None:
            raise Refused(f"Run {waiting.pk} of {job} waits already.")
        run = _queue(job, options, principal.actor, now)
        AuditEntry.record(
            principal.actor,
            "pipeline.start",
            target(job),
            reason=principal.reason,
            after={"run": run.pk, "options": JOBS[job].for_audit(options)},
        )
    return run


def cancel(run_id: int, principal: Principal, *, now: datetime) -> None:
    """End a waiting run, or ask a running one to stop. Raises Refused if the run has ended."""
    with transaction.atomic():
        rows = PipelineRun.objects.filter(pk=run_id)
        waiting = rows.filter(state=State.QUEUED)
        done = _end(waiting, State.CANCELLED, now, cancel_at=now) or rows.filter(
            state=State.RUNNING, cancel_at=None
        ).update(cancel_at=now)
        run = rows.first()
        if run is None or not done:
            raise Refused("It has ended, or was asked to stop already.")
        AuditEntry.record(
            principal.actor,
            "pipeline.cancel",
            target(run.job),
            reason=principal.reason,
            after={"run": run_id},
        )


def plan(job: str, mode: str, every_minutes: int, principal: Principal) -> None:
    """Change a job's schedule. Raises Refused for a job that has none."""
    with transaction.atomic():
        row = PipelineSchedule.objects.select_for_update().filter(job=job).first()
        if row is None:
            raise Refused(f"{job} has no schedule.")
        before = {"mode": row.mode, "every_minutes": row.every_minutes}
        after = {"mode": mode, "every_minutes": every_minutes}
        PipelineSchedule.objects.filter(job=job).update(**after)
        AuditEntry.record(
            principal.actor,
            "pipeline.plan",
            target(job),
            reason=principal.reason,
            before=before,
            after=after,
        )


def target(job: str) -> str:
    """Return the job's name in the audit log."""
    return f"pipeline:{job}"


def ask_due(now: datetime, *, has_lake: bool) -> int:
    """Request due scheduled runs of jobs that neither wait nor run; return how many."""
    count = 0
    for row in _schedules():
        if not is_on(row, has_lake=has_lake) or not _is_due(row, now):
            continue
        if unended().filter(job=row.job).exists():
            continue
        with transaction.atomic():
            unchanged = PipelineSchedule.objects.filter(job=row.job, last_at=row.last_at)
            if unchanged.update(last_at=now):
                _queue(row.job, {}, SCHEDULE, now)
                count += 1
    return count


def is_on(row: PipelineSchedule, *, has_lake: bool) -> bool:
    """Return whether this job is run on schedule."""
    return row.mode == Mode.ON or (row.mode == Mode.LAKE and has_lake)


def next_at(row: PipelineSchedule) -> datetime | None:
    """Return when this job is scheduled next; None: at the next check."""
    return row.last_at and row.last_at + timedelta(minutes=row.every_minutes)


def latest(state: str = "") -> dict[str, PipelineRun]:
    """Return each job's newest run, or its newest in a state, without the log."""
    rows = PipelineRun.objects.filter(state=state) if state else PipelineRun.objects.all()
    keys = rows.order_by().values("job").annotate(newest=Max("id")).values_list("newest", flat=True)
    runs = PipelineRun.objects.filter(pk__in=list(keys)).defer("log")
    return {run.job: run for run in runs}


def unended() -> QuerySet[PipelineRun]:
    """Return waiting and running runs."""
    return PipelineRun.objects.filter(state__in=[State.QUEUED, State.RUNNING])


def take(host: str, *, now: datetime, but: Collection[int] = frozenset()) -> PipelineRun | None:
    """Claim a waiting run, none of ``but``, to start a process for it; None if none may start.

    Runs of one job follow each other. A scheduled run also waits until no other run is active,
    because each has its own Spark.
    """
    runs = list(unended().defer("log").order_by("id"))
    busy = {run.job for run in runs if run.state == State.RUNNING or run.host}
    for run in runs:
        if run.state == State.RUNNING or run.host or run.job in busy or run.pk in but:
            continue
        if run.requested_by == SCHEDULE and busy:
            continue
        unclaimed = PipelineRun.objects.filter(pk=run.pk, state=State.QUEUED, host="")
        if unclaimed.update(host=host, heartbeat_at=now):
            return run
    return None


def give_back(run_id: int) -> None:
    """Return a run to waiting because its process found another run of the job active."""
    rows = PipelineRun.objects.filter(pk=run_id, state=State.QUEUED)
    rows.update(host="", heartbeat_at=None)


def ended(run_id: int, error: str, *, now: datetime) -> bool:
    """Record that a run's process is gone; return whether the run had not ended itself."""
    rows = PipelineRun.objects.filter(pk=run_id, state__in=[State.QUEUED, State.RUNNING])
    return bool(_end(rows, State.FAILED, now, error=error))


def reap(now: datetime) -> int:
    """End runs whose processes are gone and were not watched; return how many."""
    dead = PipelineRun.objects.filter(state=State.RUNNING, heartbeat_at__lt=now - SILENCE)
    unborn = PipelineRun.objects.filter(state=State.QUEUED, heartbeat_at__lt=now - BEGINNING)
    return _end(dead, State.FAILED, now, error=GONE) + _end(
        unborn, State.FAILED, now, error="Its process ended before it began."
    )


def forget(now: datetime) -> Iterator[int]:
    """Delete runs past their retention; yield the number of each step."""
    while True:
        oldest = PipelineRun.objects.order_by("id").values_list("id", "requested_at")[:BATCH]
        old = [number for number, at in oldest if at < now - RETENTION]
        if not old:
            return
        PipelineRun.objects.filter(id__in=old).delete()
        yield len(old)


def wake_up() -> None:
    """Make a worker start waiting runs now instead of within a minute."""
    task_queue.add(task_queue.PIPELINE)


def turn() -> list[threading.Thread]:
    """Request due runs and start those that may begin; return the threads that wait for them."""
    ask_due(clock.now(), has_lake=bool(conf().lake))
    return start()


def start() -> list[threading.Thread]:
    """Start a process for each waiting run that may begin."""
    watchers = []
    tried: set[int] = set()  # A run that is given back meanwhile waits for the next time.
    while run := take(HOST, now=clock.now(), but=tried):
        tried.add(run.pk)
        path = log_of(run)
        try:
            process = _spawn(run, path)
        except OSError as error:
            ended(run.pk, f"It cannot be started: {error}.", now=clock.now())
            continue
        watcher = threading.Thread(target=_watch, args=(process, run.pk, path), daemon=True)
        watcher.start()
        watchers.append(watcher)
    return watchers


def interpreter() -> str:
    """Return the Python that has the pipeline's packages."""
    return conf().pipeline_python or sys.executable


def is_installed() -> bool:
    """Whether that Python has the packages, as far as this host can tell."""
    if interpreter() == sys.executable:
        return importlib.util.find_spec(PACKAGE) is not None
    try:
        done = subprocess.run([interpreter(), "-c", PROBE], capture_output=True, timeout=PROBE_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def log_of(run: PipelineRun) -> Path:
    """Return the file with the output of the job's last process; the row has the run's own log."""
    return Path(settings.DATA_DIR) / "pipeline" / f"{run.job}.log"


def _queue(job: str, options: Mapping[str, Any], who: str, now: datetime) -> PipelineRun:
    return PipelineRun.objects.create(
        job=job, options=dict(options), requested_by=who, requested_at=now
    )


def _end(runs: QuerySet[PipelineRun], state: str, now: datetime, **values: Any) -> int:
    """End runs that have not changed meanwhile, and remove personal data from their options."""
    count = 0
    for number, job, options in runs.values_list("id", "job", "options"):
        kept = JOBS[job].without_subject(options) if job in JOBS else options
        unchanged = runs.filter(pk=number)
        count += unchanged.update(state=state, finished_at=now, options=kept, **values)
    return count


def _schedules() -> list[PipelineSchedule]:
    """Return a row for each scheduled job, and create missing ones."""
    rows = list(PipelineSchedule.objects.order_by("job"))
    scheduled = {row.job for row in rows}
    missing = [
        PipelineSchedule(job=job.name, every_minutes=job.every_minutes)
        for job in JOBS.values()
        if job.every_minutes and job.name not in scheduled
    ]
    if missing:
        PipelineSchedule.objects.bulk_create(missing, ignore_conflicts=True)
    return rows + missing


def _is_due(row: PipelineSchedule, now: datetime) -> bool:
    every = timedelta(minutes=row.every_minutes)
    # A last run in the future means that the clock was set back.
    return row.last_at is None or not now - every < row.last_at <= now


def _spawn(run: PipelineRun, path: Path) -> subprocess.Popen[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    command = [interpreter(), "-m", "pipeline", "--run", str(run.pk)]
    if nice := shutil.which("nice"):
        command = [nice, "-n", str(NICENESS), *command]
    with path.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _watch(process: subprocess.Popen[bytes], run_id: int, path: Path) -> None:
    """Wait for the process, make sure that the run has ended too, and start the next."""
    code = process.wait()
    try:
        if code == ExitCode.BUSY:
            give_back(run_id)
        elif ended(run_id, _last_output(code, path), now=clock.now()):
            logger.warning("pipeline run %s ended with code %s, see %s", run_id, code, path)
        if code != ExitCode.BUSY:
            start()
    except DatabaseFailure as error:
        # The sweep notices the missing heartbeat.
        logger.warning(
            "pipeline run %s cannot be closed; it ends when its heartbeat expires: %s",
            run_id,
            error,
        )
    finally:
        connections.close_all()


def _last_output(code: int, path: Path) -> str:
    """Return what is known of a process that did not record its own end."""
    if code < 0:
        return f"{GONE} It was killed by signal {-code}."
    try:
        output = path.read_bytes()[-TAIL:].decode(errors="replace").strip()
    except OSError:
        output = ""
    return output or f"{GONE} Its exit code was {code}."
