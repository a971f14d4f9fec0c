"""Pipeline runs: requested, started once in their own process, ended when it is gone."""

import shutil
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django_q.models import OrmQ, Schedule

from channels_app.core.errors import Refused
from channels_app.database import clock
from channels_app.models import AuditEntry
from delivery.cluster import tasks
from delivery.maintenance import pipeline_runs, sweeps
from delivery.models import PipelineRun, PipelineSchedule
from delivery.processes import task_queue
from pipeline.contract.jobs import JOBS
from tests.support.principals import acting

pytestmark = pytest.mark.django_db(transaction=True)

OLGA = acting("user:olga", "because")
State = PipelineRun.State


def ask(job: str = "usage", **options: Any) -> PipelineRun:
    return pipeline_runs.ask(job, options, OLGA, now=clock.now())


def state_of(run: PipelineRun) -> str:
    run.refresh_from_db()
    return run.state


@pytest.fixture(autouse=True)
def _own_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the output of jobs from tests that run in parallel."""
    monkeypatch.setattr(settings, "DATA_DIR", tmp_path)


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Replaces the pipeline's interpreter; returns the file that its arguments are written to."""

    def make(script: str) -> Path:
        path, told = tmp_path / "python", tmp_path / "told"
        path.write_text(f'#!/bin/sh\necho "$*" >>{told}\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setattr(pipeline_runs, "interpreter", lambda: str(path))
        return told

    return make


def join(watchers: list[threading.Thread]) -> None:
    for watcher in watchers:
        watcher.join(60)
        assert not watcher.is_alive()


# -- Requests --------------------------------------------------------------------------------------


def test_a_requested_run_is_queued_and_audited() -> None:
    run = ask("usage", since="2026-11-01")

    assert (state_of(run), run.requested_by) == ("queued", "user:olga")
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target, entry.reason) == (
        "pipeline.start",
        "pipeline:usage",
        "because",
    )
    assert entry.after == {"run": run.pk, "options": {"since": "2026-11-01"}}


def test_a_second_request_of_the_same_job_is_refused() -> None:
    run = ask("usage")
    with pytest.raises(Refused, match=f"Run {run.pk} of usage waits"):
        ask("usage")
    with pytest.raises(Refused, match="no job nonsense"):
        ask("nonsense")
    ask("health")

    assert PipelineRun.objects.count() == AuditEntry.objects.count() == 2


def test_stopping_ends_a_queued_run_at_once_and_asks_a_running_one() -> None:
    waiting, working = ask("usage"), ask("health")
    PipelineRun.objects.filter(pk=working.pk).update(state=State.RUNNING)

    for run in (waiting, working):
        pipeline_runs.cancel(run.pk, OLGA, now=clock.now())
        with pytest.raises(Refused):
            pipeline_runs.cancel(run.pk, OLGA, now=clock.now())

    assert state_of(waiting) == "cancelled"
    assert state_of(working) == "running"
    assert working.cancel_at is not None
    assert AuditEntry.objects.filter(action="pipeline.cancel").count() == 2


# -- Schedules -------------------------------------------------------------------------------------


def test_without_a_lake_no_job_is_scheduled() -> None:
    assert pipeline_runs.ask_due(clock.now(), has_lake=False) == 0
    assert not PipelineRun.objects.exists()
    assert PipelineSchedule.objects.count() == sum(1 for job in JOBS.values() if job.every_minutes)


def test_scheduled_jobs_run_at_their_interval_and_never_concurrently() -> None:
    now = clock.now()
    jobs = {job.name for job in JOBS.values() if job.every_minutes}
    assert pipeline_runs.ask_due(now, has_lake=True) == len(jobs)
    assert set(PipelineRun.objects.values_list("job", "requested_by")) == {
        (job, "schedule") for job in jobs
    }
    later = now + timedelta(days=2)
    assert pipeline_runs.ask_due(later, has_lake=True) == 0  # all of them are still queued
    PipelineRun.objects.update(state=State.FINISHED)
    soon = now + timedelta(minutes=59)
    assert pipeline_runs.ask_due(soon, has_lake=True) == 0
    hour = now + timedelta(minutes=60)
    hourly = sum(1 for job in JOBS.values() if job.every_minutes == 60)
    assert pipeline_runs.ask_due(hour, has_lake=True) == hourly


def test_changing_a_jobs_schedule_is_audited() -> None:
    pipeline_runs.ask_due(clock.now(), has_lake=False)
    rhythms = PipelineSchedule.objects.count()
    pipeline_runs.plan("usage", "on", 7, OLGA)
    pipeline_runs.plan("health", "off", 1440, OLGA)

    assert pipeline_runs.ask_due(clock.now(), has_lake=False) == 1
    assert PipelineRun.objects.get().job == "usage"
    assert pipeline_runs.ask_due(clock.now(), has_lake=True) == rhythms - 2
    entry = AuditEntry.objects.get(target="pipeline:usage")
    assert entry.before == {"mode": "lake", "every_minutes": 60}
    assert entry.after == {"mode": "on", "every_minutes": 7}


# -- Starting --------------------------------------------------------------------------------------


def test_a_run_gets_one_process_with_its_number(
    python: Callable[[str], Path], tmp_path: Path
) -> None:
    asked_twice = tmp_path / "asked_twice"
    told = python(f"while [ ! -e {asked_twice} ]; do sleep 0.05; done; exit 3")
    run = ask("usage")

    first = pipeline_runs.start()
    second = pipeline_runs.start()  # the process has not reported yet
    asked_twice.touch()
    join(first + second)

    assert told.read_text() == f"-m pipeline --run {run.pk}\n"


def test_a_run_that_finds_another_running_waits(python: Callable[[str], Path]) -> None:
    told = python("exit 3")
    run = ask("usage")
    join(pipeline_runs.start())
    assert (state_of(run), run.host) == ("queued", "")

    join(pipeline_runs.start())
    assert len(told.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo 'install the packages' >&2; exit 1", "install the packages"),
        ("exit 2", "Its process ended without a result. Its exit code was 2."),
        ("kill -9 $$", "Its process ended without a result. It was killed by signal 9."),
    ],
)
def test_a_job_process_that_dies_at_start_fails_the_run_at_once(
    python: Callable[[str], Path], script: str, error: str
) -> None:
    python(script)
    run = ask("usage")
    join(pipeline_runs.start())

    assert (state_of(run), run.error) == ("failed", error)
    assert run.finished_at is not None


def test_a_missing_interpreter_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_runs, "interpreter", lambda: "/nowhere/python")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    run = ask("usage")
    join(pipeline_runs.start())

    assert state_of(run) == "failed"
    assert "No such file" in run.error


def test_the_next_of_a_job_begins_when_the_one_before_has_ended(
    python: Callable[[str], Path],
) -> None:
    python("exit 2")
    working = ask("usage")
    PipelineRun.objects.filter(pk=working.pk).update(state=State.RUNNING, host="elsewhere")
    waiting, other = ask("usage"), ask("health")

    join(pipeline_runs.start())
    assert state_of(other) == "failed"  # it was started at once
    assert state_of(waiting) == "queued"

    PipelineRun.objects.filter(pk=working.pk).update(state=State.FINISHED)
    join(pipeline_runs.start())
    assert state_of(waiting) == "failed"


def test_scheduled_runs_wait_until_no_other_run_is_active() -> None:
    now = clock.now()
    pipeline_runs.ask_due(now, has_lake=True)

    first = pipeline_runs.take("here", now=now)
    assert first is not None
    assert pipeline_runs.take("here", now=now) is None
    by_hand = PipelineRun.objects.create(job="mine", requested_by="user:olga", requested_at=now)
    assert pipeline_runs.take("here", now=now) == by_hand


def test_a_run_without_heartbeats_is_ended_by_a_sweep() -> None:
    now = clock.now()
    silent, alive, unborn, fresh = ask("usage"), ask("health"), ask("triage"), ask("audit")
    for run, state, age_s in (
        (silent, State.RUNNING, 61),
        (alive, State.RUNNING, 59),
        (unborn, State.QUEUED, 181),
        (fresh, State.QUEUED, 60),
    ):
        PipelineRun.objects.filter(pk=run.pk).update(
            state=state, host="gone", heartbeat_at=now - timedelta(seconds=age_s)
        )

    assert pipeline_runs.reap(now) == 2

    assert (state_of(silent), silent.error) == ("failed", "Its process ended without a result.")
    assert (state_of(unborn), unborn.error) == ("failed", "Its process ended before it began.")
    assert (state_of(alive), state_of(fresh)) == ("running", "queued")
    assert "pipeline" in {sweep.name for sweep in sweeps.SWEEPS}


def test_a_finished_run_deletes_options_that_identify_a_person(
    python: Callable[[str], Path],
) -> None:
    told = {"ordering_key": ["customer-7"], "message": ["msg_1"], "reason": "a letter"}
    digest = JOBS["erase"].without_subject(told)["subject"]
    now = clock.now()

    taken_back = ask("erase", **told)
    pipeline_runs.cancel(taken_back.pk, OLGA, now=now)
    python("echo broken >&2; exit 1")
    broken = ask("erase", **told)
    join(pipeline_runs.start())
    silent = ask("erase", **told)
    PipelineRun.objects.filter(pk=silent.pk).update(
        state=State.RUNNING, heartbeat_at=now - timedelta(seconds=61)
    )
    assert silent.options == told
    assert pipeline_runs.reap(now) == 1

    for run, state in ((taken_back, "cancelled"), (broken, "failed"), (silent, "failed")):
        assert state_of(run) == state
        assert run.options == {"reason": "a letter", "subject": digest}
    assert "customer-7" not in str(list(AuditEntry.objects.values()))


def test_old_runs_are_deleted() -> None:
    old, young = ask("usage"), ask("health")
    PipelineRun.objects.filter(pk=old.pk).update(requested_at=clock.now() - timedelta(days=91))

    assert sum(pipeline_runs.forget(clock.now())) == 1
    assert PipelineRun.objects.get() == young


def test_a_lost_notification_of_a_run_is_repeated_by_the_scheduler(
    python: Callable[[str], Path],
) -> None:
    python("exit 2")
    pipeline_runs.wake_up()
    task_queue.ensure_schedules()
    assert task_queue.task_of(OrmQ.objects.get().payload) == task_queue.PIPELINE
    assert Schedule.objects.filter(func=task_queue.PIPELINE).exists()
    run = ask("usage")
    assert tasks.pipeline() == 1
    for watcher in threading.enumerate():
        if watcher.name.endswith("(_watch)"):
            watcher.join(60)
    assert state_of(run) == "failed"
