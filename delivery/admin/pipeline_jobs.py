"""Describe pipeline jobs and runs for the console."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html
from django.utils.text import capfirst

from channels_app import clock
from channels_app.admin import base
from channels_app.rules.program import typed
from delivery.admin.live import Live
from delivery.models import PipelineRun, PipelineSchedule
from delivery.steps import pipeline_runs
from pipeline.contract.jobs import DRY_RUN, JOBS, Job

State = PipelineRun.State
TONE = {
    State.QUEUED: "wait",
    State.RUNNING: "busy",
    State.FINISHED: "good",
    State.FAILED: "bad",
    State.CANCELLED: "calm",
}
HEADINGS = {State.FINISHED: "Done", State.FAILED: "Failed", State.CANCELLED: "Stopped"}
PERIODS = ((24 * 60, "day"), (60, "hour"), (1, "minute"))


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job."""

    job: Job
    last: PipelineRun | None
    state: str
    """State of the last run, in colour."""
    done: PipelineRun | None
    """The last run that finished."""
    took: str
    """Duration of that run."""
    rhythm: str


def job_statuses() -> list[JobStatus]:
    """Return each job with its last run, its last success and its schedule."""
    last, done = pipeline_runs.latest(), pipeline_runs.latest(State.FINISHED)
    plans = PipelineSchedule.objects.in_bulk()
    now = clock.now()
    return [
        JobStatus(
            job,
            newest := last.get(name),
            state(newest) if newest else "",
            good := done.get(name),
            duration(good, now) if good else "",
            _rhythm(job, plans.get(name)),
        )
        for name, job in JOBS.items()
    ]


def shown(run: PipelineRun) -> Live:
    """Return the live part of a run's page."""
    is_over = run.state not in (State.QUEUED, State.RUNNING)
    took = duration(run, clock.now())
    note = ""
    if run.state == State.RUNNING and run.total:
        note = f"{run.done:,} of {run.total:,}"
    elif is_over and run.started_at:
        note = f"in {took}"
    if run.options.get(DRY_RUN.name):
        note += ", a dry run: nothing is written" if note else "a dry run: nothing is written"
    facts = [("Took", took), ("Rows read", run.row_count)] if run.started_at else []
    return Live(
        _heading(run),
        note,
        min(run.done, run.total),
        0 if is_over else run.total,
        error=run.error,
        facts=(*facts, *(_fact(name, value) for name, value in run.result.items())),
        hint=_hint(run),
        log=run.log,
    )


def words(run: PipelineRun) -> list[str]:
    """Return a run's options as a command line, without those that identify a person."""
    job = JOBS.get(run.job)
    return job.command_line(run.options) if job else [str(run.options)] if run.options else []


def state(run: PipelineRun) -> str:
    """Return a run's state, in colour."""
    name = "stopping" if run.cancel_at and run.state == State.RUNNING else run.state
    found = base.label(name, TONE[State(run.state)])
    if not run.options.get(DRY_RUN.name):
        return found
    return format_html("{} {}", found, base.label("dry run"))


def duration(run: PipelineRun, now: datetime) -> str:
    """Return the time from beginning to end, or until now."""
    if run.started_at is None:
        return base.NONE
    span = max((run.finished_at or now) - run.started_at, timedelta(0))
    if span < timedelta(minutes=1):
        return f"{span.total_seconds():.1f} s"
    return str(timedelta(seconds=int(span.total_seconds())))


def is_on(row: PipelineSchedule) -> bool:
    """Whether this installation runs the job by its schedule."""
    return pipeline_runs.is_on(row, has_lake=bool(settings.ENVIRONMENT.lake))


def period(minutes: int) -> str:
    """Return an interval in words: ``hour``, ``6 hours``, ``90 minutes``."""
    for size, name in PERIODS:
        if minutes % size == 0:
            count = minutes // size
            return name if count == 1 else f"{count} {name}s"
    raise AssertionError("unreachable")


def _rhythm(job: Job, row: PipelineSchedule | None) -> str:
    if not job.every_minutes:
        return "on request"
    if row is None or not is_on(row):
        return "not scheduled"
    return f"every {period(row.every_minutes)}"


def _heading(run: PipelineRun) -> str:
    if run.state == State.QUEUED:
        return "Its process is starting" if run.host else "Queued"
    if run.state == State.RUNNING:
        return "Stopping" if run.cancel_at else capfirst(run.stage or "beginning")
    return HEADINGS[State(run.state)]


def _hint(run: PipelineRun) -> str:
    """Explain what a queued run waits for, or why a run without a log ended."""
    if run.state == State.CANCELLED and not run.started_at:
        return "It was stopped before it started."
    if run.state == State.FAILED:
        where = f"pipeline/{run.job}.log in the data folder of its host"
        log = "" if run.log else f" It left no log here. Its output is in {where}."
        return f"What it wrote is intact, and you can start it again.{log}"
    if run.state != State.QUEUED or run.host:
        return ""
    others = " and no other job runs" if run.requested_by == pipeline_runs.SCHEDULE else ""
    return (
        f"A worker ({typed('manage.py broker')}) starts it within a minute, when no other run "
        f"of this job is in progress{others}."
    )


def _fact(name: str, value: Any) -> tuple[str, Any]:
    """Return a line of a run's result for people."""
    title = capfirst(name.replace("_", " "))
    if value is None:
        return title, base.NONE
    if name.startswith("bytes") and isinstance(value, int):
        return title, filesizeformat(value)
    if isinstance(value, str):
        try:
            return title, f"{datetime.fromisoformat(value):%Y-%m-%d %H:%M}"
        except ValueError:
            return title, value
    return title, value
