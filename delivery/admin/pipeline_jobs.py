"""Pipeline jobs as people see them: how each stands, and a run in words."""

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
from delivery.rules.pipeline_jobs import DRY_RUN, JOBS, Job
from delivery.steps import pipeline_runs

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
class Standing:
    """How a job stands."""

    job: Job
    last: PipelineRun | None
    state: str
    """Of the last run, in colour."""
    done: PipelineRun | None
    """The last one that came to its end."""
    took: str
    """By that one."""
    rhythm: str


def standings() -> list[Standing]:
    """Each job: its last run, its last success, and when it runs by itself."""
    last, done = pipeline_runs.latest(), pipeline_runs.latest(State.FINISHED)
    plans = PipelineSchedule.objects.in_bulk()
    now = clock.now()
    return [
        Standing(
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
    """What a run's live part says."""
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
    """What a run was told, as a command line has it; nothing of what names a person."""
    job = JOBS.get(run.job)
    return job.words(run.options) if job else [str(run.options)] if run.options else []


def state(run: PipelineRun) -> str:
    """A run's state in colour."""
    name = "stopping" if run.cancel_at and run.state == State.RUNNING else run.state
    found = base.label(name, TONE[State(run.state)])
    if not run.options.get(DRY_RUN.name):
        return found
    return format_html("{} {}", found, base.label("dry run"))


def duration(run: PipelineRun, now: datetime) -> str:
    """From its beginning to its end, or until now."""
    if run.started_at is None:
        return base.NONE
    span = max((run.finished_at or now) - run.started_at, timedelta(0))
    if span < timedelta(minutes=1):
        return f"{span.total_seconds():.1f} s"
    return str(timedelta(seconds=int(span.total_seconds())))


def is_on(row: PipelineSchedule) -> bool:
    """Whether the clock asks for the job in this installation."""
    return pipeline_runs.is_on(row, has_lake=bool(settings.ENVIRONMENT.lake))


def period(minutes: int) -> str:
    """A rhythm in words: ``hour``, ``6 hours``, ``90 minutes``."""
    for size, name in PERIODS:
        if minutes % size == 0:
            count = minutes // size
            return name if count == 1 else f"{count} {name}s"
    raise AssertionError("unreachable")


def _rhythm(job: Job, row: PipelineSchedule | None) -> str:
    if not job.every_minutes:
        return "when asked for"
    if row is None or not is_on(row):
        return "not by itself"
    return f"every {period(row.every_minutes)}"


def _heading(run: PipelineRun) -> str:
    if run.state == State.QUEUED:
        return "Its process is starting" if run.host else "Waits for its turn"
    if run.state == State.RUNNING:
        return "Stopping" if run.cancel_at else capfirst(run.stage or "beginning")
    return HEADINGS[State(run.state)]


def _hint(run: PipelineRun) -> str:
    """What a run waits for that waits, and why one of which nothing is to be seen ended."""
    if run.state == State.CANCELLED and not run.started_at:
        return "It was taken back before it began."
    if run.state == State.FAILED:
        where = f"pipeline/{run.job}.log in the data folder of its host"
        log = "" if run.log else f" It left no log here: what it printed is in {where}."
        return f"What it had written is whole, and it may be started again.{log}"
    if run.state != State.QUEUED or run.host:
        return ""
    others = " and nothing else runs" if run.requested_by == pipeline_runs.SCHEDULE else ""
    return (
        f"A worker ({typed('manage.py broker')}) starts it within a minute, when no other run "
        f"of this job is at work{others}."
    )


def _fact(name: str, value: Any) -> tuple[str, Any]:
    """A line of a run's result, as people read it."""
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
