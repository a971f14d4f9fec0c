"""The console's pages of the pipeline: how it stands, a run live, start and stop by operators."""

import pytest
from django.test import Client
from django.urls import reverse
from django_q.models import OrmQ

from channels_app import clock
from channels_app.models import AuditEntry
from delivery.models import PipelineRun, PipelineSchedule
from delivery.rules.pipeline_jobs import JOBS
from delivery.steps import pipeline_runs
from tests import console

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    return console.operator()


@pytest.fixture
def onlooker() -> Client:
    return console.onlooker()


def make(**values: object) -> PipelineRun:
    now = clock.now()
    given = {"job": "usage", "requested_by": "user:mia", "requested_at": now, **values}
    if given.get("state", "queued") != "queued":
        given |= {"started_at": now, "heartbeat_at": now, "host": "here", "pid": 17}
    return PipelineRun.objects.create(**given)


def start_url(job: str = "usage") -> str:
    return reverse("admin:delivery_pipelinerun_start", args=[job])


def bar_url(run: PipelineRun) -> str:
    return reverse("admin:delivery_pipelinerun_progress", args=[run.pk])


def stop_url(run: PipelineRun) -> str:
    return reverse("admin:delivery_pipelinerun_stop", args=[run.pk])


def test_an_empty_page_says_what_can_be_done(operator: Client) -> None:
    text = console.look(operator, console.list_url(PipelineRun))
    assert "set <code" in text
    assert "HOOKSTATION_LAKE" in text
    for job in JOBS.values():
        assert start_url(job.name) in text
    assert "never" in text


def test_each_job_stands_with_its_last_run_and_its_last_success(operator: Client) -> None:
    done = make(state="finished", finished_at=clock.now(), row_count=4711)
    failed = make(state="failed", error="It broke.\nwith a long story")
    text = console.look(operator, console.list_url(PipelineRun))
    row = text.split("Usage</th>")[1].split("</tr>")[0]
    assert console.page_url(failed) in row
    assert "4,711" in row
    assert str(done.finished_at)[:10] in row
    assert "It broke." in text
    assert "long story" not in text


@pytest.mark.parametrize("job", list(JOBS))
def test_every_job_is_started_by_its_form(operator: Client, job: str) -> None:
    console.look(operator, start_url(job))
    form = {"reason": "curious", "dry_run": "on", "sure": "on"}
    form |= {option.name: "1" for option in JOBS[job].options if option.required}
    answer = operator.post(start_url(job), form)

    run = PipelineRun.objects.get()
    assert answer.headers["Location"] == console.page_url(run)
    assert (run.job, run.state, run.requested_by) == (job, "queued", "user:olga")
    assert run.options.get("dry_run", False) is JOBS[job].has_dry_run
    assert AuditEntry.objects.get().reason == "curious"
    assert OrmQ.objects.count() == 1


def test_what_cannot_be_started_says_why(operator: Client) -> None:
    operator.post(start_url(), {})
    answer = operator.post(start_url(), {})

    assert answer.status_code == 200
    assert "waits already" in answer.content.decode()
    assert operator.get(start_url("nonsense")).status_code == 404


def test_who_only_looks_neither_starts_nor_stops(onlooker: Client) -> None:
    run = make(state="running")
    text = console.look(onlooker, console.list_url(PipelineRun))
    assert start_url() not in text
    assert "Stop" not in console.look(onlooker, console.page_url(run))
    console.look(onlooker, bar_url(run))
    for url in (start_url(), stop_url(run)):
        assert onlooker.get(url).status_code == 403
        assert onlooker.post(url, {}).status_code == 403
    assert Client().get(bar_url(run)).status_code == 302
    run.refresh_from_db()
    assert run.cancel_at is None


def test_a_run_is_seen_live_until_its_end(operator: Client) -> None:
    run = make(state="running", stage="reading files", done=30, total=40, log="<i>one</i>")
    page = console.look(operator, console.page_url(run))
    assert f'hx-get="{bar_url(run)}"' in page
    assert 'value="75.0"' in page
    assert "&lt;i&gt;one&lt;/i&gt;" in page

    PipelineRun.objects.filter(pk=run.pk).update(
        state="finished", finished_at=clock.now(), result={"rows_moved": 12000}
    )
    answer = operator.get(bar_url(run))
    assert answer.headers["HX-Refresh"] == "true"
    page = console.look(operator, console.page_url(run))
    assert "hx-get" not in page.split('id="progress"')[1].split(">")[0]
    assert "Rows moved" in page
    assert "12,000" in page


def test_a_run_is_stopped_by_a_dialog_alone(operator: Client) -> None:
    run = make(state="running")
    assert "Stop this run?" in operator.get(stop_url(run)).content.decode()
    run.refresh_from_db()
    assert run.cancel_at is None

    answer = operator.post(stop_url(run), {"_form_submitted": "1", "reason": "enough"})
    assert answer.headers["HX-Redirect"] == console.page_url(run)
    run.refresh_from_db()
    assert run.cancel_at is not None
    assert AuditEntry.objects.get().reason == "enough"
    assert "stopping" in console.look(operator, console.page_url(run))


def test_a_rhythm_is_changed_by_a_dialog(operator: Client, onlooker: Client) -> None:
    pipeline_runs.ask_due(clock.now(), has_lake=False)
    row = PipelineSchedule.objects.get(job="usage")
    assert "waits for a lake" in console.look(operator, console.page_url(row))
    url = reverse("admin:delivery_pipelineschedule_plan", args=["usage"])
    assert 'value="60"' in operator.get(url).content.decode()
    form = {"_form_submitted": "1", "mode": "on", "every_minutes": "90", "reason": "why not"}
    assert onlooker.post(url, form).status_code == 403

    operator.post(url, form)

    row.refresh_from_db()
    assert (row.mode, row.every_minutes) == ("on", 90)
    assert AuditEntry.objects.get().reason == "why not"
    assert "90 minutes" in console.look(operator, console.list_url(PipelineSchedule))
