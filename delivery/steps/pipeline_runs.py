"""Request runs of the pipeline, assign them to processes, and end runs whose process is gone.

All changes are compare-and-set on the run's row, which the process itself updates as well
(pipeline/broker/runs.py).
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Max, QuerySet

from channels_app.errors import Refused
from channels_app.models import AuditEntry
from delivery.models import PipelineRun, PipelineSchedule
from delivery.rules.principal import Principal
from pipeline.contract.jobs import JOBS

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
        mine = PipelineRun.objects.filter(pk=run_id)
        waiting = mine.filter(state=State.QUEUED)
        done = _end(waiting, State.CANCELLED, now, cancel_at=now) or mine.filter(
            state=State.RUNNING, cancel_at=None
        ).update(cancel_at=now)
        run = mine.first()
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
            mine = PipelineSchedule.objects.filter(job=row.job, last_at=row.last_at)
            if mine.update(last_at=now):
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
    found = PipelineRun.objects.filter(pk__in=list(keys)).defer("log")
    return {run.job: run for run in found}


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
        mine = PipelineRun.objects.filter(pk=run.pk, state=State.QUEUED, host="")
        if mine.update(host=host, heartbeat_at=now):
            return run
    return None


def give_back(run_id: int) -> None:
    """Return a run to waiting because its process found another run of the job active."""
    mine = PipelineRun.objects.filter(pk=run_id, state=State.QUEUED)
    mine.update(host="", heartbeat_at=None)


def ended(run_id: int, error: str, *, now: datetime) -> bool:
    """Record that a run's process is gone; return whether the run had not ended itself."""
    mine = PipelineRun.objects.filter(pk=run_id, state__in=[State.QUEUED, State.RUNNING])
    return bool(_end(mine, State.FAILED, now, error=error))


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


def _end(runs: QuerySet[PipelineRun], state: str, now: datetime, **values: Any) -> int:
    """End runs that have not changed meanwhile, and remove personal data from their options."""
    count = 0
    for number, job, options in runs.values_list("id", "job", "options"):
        kept = JOBS[job].without_subject(options) if job in JOBS else options
        mine = runs.filter(pk=number)
        count += mine.update(state=state, finished_at=now, options=kept, **values)
    return count


def _schedules() -> list[PipelineSchedule]:
    """Return a row for each scheduled job, and create missing ones."""
    rows = list(PipelineSchedule.objects.order_by("job"))
    known = {row.job for row in rows}
    missing = [
        PipelineSchedule(job=job.name, every_minutes=job.every_minutes)
        for job in JOBS.values()
        if job.every_minutes and job.name not in known
    ]
    if missing:
        PipelineSchedule.objects.bulk_create(missing, ignore_conflicts=True)
    return rows + missing


def _is_due(row: PipelineSchedule, now: datetime) -> bool:
    every = timedelta(minutes=row.every_minutes)
    # A last run in the future means that the clock was set back.
    return row.last_at is None or not now - every < row.last_at <= now


def _queue(job: str, options: Mapping[str, Any], who: str, now: datetime) -> PipelineRun:
    return PipelineRun.objects.create(
        job=job, options=dict(options), requested_by=who, requested_at=now
    )
