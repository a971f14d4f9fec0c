"""Pipeline jobs as people see them: how each stands, and a run in words."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from channels_app import clock
from channels_app.admin import base
from delivery.models import PipelineRun, PipelineSchedule
from delivery.rules.pipeline_jobs import JOBS, Job
from delivery.steps import pipeline_runs

State = PipelineRun.State
TONE = {
    State.QUEUED: "wait",
    State.RUNNING: "busy",
    State.FINISHED: "good",
    State.FAILED: "bad",
    State.CANCELLED: "calm",
}
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


def shown(run: PipelineRun) -> dict[str, Any]:
    """What a run's live part says."""
    is_over = run.state not in (State.QUEUED, State.RUNNING)
    return {
        "original": run,
        "job": JOBS.get(run.job),
        "is_over": is_over,
        "took": duration(run, clock.now()),
        "percent": 100 * min(run.done, run.total) / run.total if run.total else None,
        "result": [(name.replace("_", " "), value) for name, value in run.result.items()],
    }


def state(run: PipelineRun) -> str:
    """A run's state in colour."""
    if run.cancel_at and run.state == State.RUNNING:
        return base.label("stopping", "busy")
    return base.label(run.state, TONE[State(run.state)])


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
