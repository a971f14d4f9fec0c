"""The console's pages of the pipeline: its state, live runs, and start and stop by operators."""

import re

import pytest
from django.test import Client
from django.urls import reverse
from django_q.models import OrmQ

from channels_app.database import clock
from channels_app.models import AuditEntry
from delivery.maintenance import pipeline_runs
from delivery.models import PipelineRun, PipelineSchedule, Restore
from pipeline.contract.jobs import JOBS
from tests.support import console
from tests.support.factories import ConsumerFactory

pytestmark = pytest.mark.django_db


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


def test_each_job_shows_its_last_run_and_success(operator: Client) -> None:
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
    form |= {it.name: "1" for it in JOBS[job].options if it.required or it.is_private}
    answer = operator.post(start_url(job), form)

    run = PipelineRun.objects.get()
    assert answer.headers["Location"] == console.page_url(run)
    assert (run.job, run.state, run.requested_by) == (job, "queued", "user:olga")
    assert run.options.get("dry_run", False) is JOBS[job].has_dry_run
    assert AuditEntry.objects.get().reason == "curious"
    assert OrmQ.objects.count() == 1


def test_an_erasure_requires_a_person_and_confirmation(operator: Client) -> None:
    for form, asked in (
        ({"dry_run": "on", "message": " "}, "Fill in at least one of the keys"),
        ({"message": "msg_1"}, "Confirm it here, or choose a dry run"),
    ):
        assert asked in operator.post(start_url("erase"), form).content.decode()
    assert not PipelineRun.objects.exists()


def test_a_link_prefills_the_form_without_confirmation(operator: Client) -> None:
    asked = "?since=2026-11-01&dry_run=&sure=on&ordering_key=customer-7"
    text = console.look(operator, start_url("replay") + asked)
    assert 'value="2026-11-01"' in text
    for name, chosen in (("dry_run", True), ("sure", False)):
        (box,) = re.findall(f'<input[^>]*name="{name}"[^>]*>', text)
        assert bool(re.search(r"\schecked[\s>]", box)) is chosen


def test_a_job_that_cannot_start_shows_the_reason(operator: Client) -> None:
    operator.post(start_url(), {})
    answer = operator.post(start_url(), {})

    assert answer.status_code == 200
    assert "waits already" in answer.content.decode()
    assert operator.get(start_url("nonsense")).status_code == 404


def test_a_runs_page_is_live_until_it_ends(operator: Client) -> None:
    run = make(state="running", stage="reading files", done=30, total=40, log="<i>one</i>")
    page = console.look(operator, console.page_url(run))
    assert f'hx-get="{bar_url(run)}"' in page
    assert 'max="40" value="30"' in page
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


def test_a_run_shows_its_result_in_words(operator: Client) -> None:
    result = {"since": "2026-11-01T08:00:00+00:00", "bytes": 41_943_040, "last": None}
    run = make(state="finished", finished_at=clock.now(), result=result, options={"dry_run": True})
    page = console.look(operator, console.page_url(run))
    for name, value in (("Since", "2026-11-01 08:00"), ("Bytes", "40.0\xa0MB"), ("Last", "-")):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in page
    assert "a dry run: nothing is written" in page
    assert "dry run" in console.look(operator, console.list_url(PipelineRun))


def test_a_restores_page_is_live_until_it_ends(operator: Client) -> None:
    run = make(job="replay", state="running")
    row = Restore.objects.create(
        run_id=run.pk,
        consumer_id=ConsumerFactory.create().pk,
        requested_by="user:mia",
        created_at=clock.now(),
        matched_count=400,
        staged_count=300,
        queued_count=17,
        skipped_count=3,
        options={"asked": {"since": "30d", "only_dead": True, "until": None}},
    )
    bar = reverse("admin:delivery_restore_progress", args=[row.pk])
    page = console.look(operator, console.page_url(row))
    assert f'hx-get="{bar}"' in page
    assert 'max="400" value="20"' in page
    assert "17 of 400 are queued" in page
    assert "--since 30d --only-dead" in page
    assert console.page_url(run) in page
    assert "with the same options" not in page
    pipeline_runs.ended(run.pk, "gone", now=clock.now())
    assert "with the same options" in console.look(operator, bar)

    Restore.objects.update(state="refused", error="<No key>", finished_at=clock.now())
    answer = operator.get(bar)
    assert answer.headers["HX-Refresh"] == "true"
    page = console.look(operator, console.page_url(row))
    assert "hx-get" not in page.split('id="progress"')[1].split(">")[0]
    assert "&lt;No key&gt;" in page


def test_options_are_shown_without_those_that_identify_a_person(operator: Client) -> None:
    options = {"dry_run": True, "ordering_key": ["customer-7"], "reason": "it's a letter"}
    run = make(job="erase", state="running", options=options)
    page = console.look(operator, console.page_url(run))
    assert "--dry-run --ordering-key *** --reason &#x27;it&#x27;" in page
    assert "customer-7" not in page

    PipelineRun.objects.filter(pk=run.pk).update(options=JOBS["erase"].without_subject(options))
    page = console.look(operator, console.page_url(run))
    assert (
        f"SHA-256 of what was asked for: {JOBS['erase'].without_subject(options)['subject']}"
        in page
    )


def test_a_run_is_stopped_only_through_a_dialog(operator: Client) -> None:
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


def test_a_jobs_schedule_is_changed_beside_its_runs(operator: Client) -> None:
    pipeline_runs.ask_due(clock.now(), has_lake=False)
    row = PipelineSchedule.objects.get(job="usage")
    runs = console.list_url(PipelineRun)
    assert "waits for a lake" in console.look(operator, runs)
    url = reverse("admin:delivery_pipelinerun_schedule", args=["usage"])
    assert url in console.look(operator, runs)
    assert 'value="60"' in console.look(operator, url)
    form = {"mode": "on", "every_minutes": "90", "reason": "why not"}
    assert (
        "greater than or equal"
        in operator.post(url, form | {"every_minutes": "0"}).content.decode()
    )
    assert operator.get(url.replace("usage", "nonsense")).status_code == 404

    assert operator.post(url, form).headers["Location"] == runs

    row.refresh_from_db()
    assert (row.mode, row.every_minutes) == ("on", 90)
    assert AuditEntry.objects.get().reason == "why not"
    assert "every 90 minutes, next within a minute" in console.look(operator, runs)
