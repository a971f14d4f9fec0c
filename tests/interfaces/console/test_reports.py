"""Report pages of the pipeline: before its first run, and after the last run failed."""

import html
from dataclasses import replace
from datetime import timedelta

import pytest
from django.conf import LazySettings
from django.test import Client
from django.urls import reverse

from channels_app.database import clock
from delivery.models import Erasure, LakeAudit, PipelineRun, Restore, Segment
from tests.support import console

pytestmark = pytest.mark.django_db

PAGES = {
    "usage": reverse("admin:usage"),
    "health": reverse("admin:health"),
    "triage": reverse("admin:triage"),
    "forecast": reverse("admin:forecast"),
    "archive": console.list_url(Segment),
    "audit": console.list_url(LakeAudit),
    "replay": console.list_url(Restore),
    "erase": console.list_url(Erasure),
}
FAILED = "The last run failed"


def make(job: str, state: str = "failed", **values: object) -> PipelineRun:
    times = dict.fromkeys(("requested_at", "started_at", "heartbeat_at"), clock.now())
    if state != "running":
        times["finished_at"] = clock.now()
    given = {"job": job, "state": state, "requested_by": "schedule", "host": "here", "pid": 17}
    return PipelineRun.objects.create(**given | times | values)


def start_url(job: str, again: PipelineRun | None = None) -> str:
    url = reverse("admin:delivery_pipelinerun_start", args=[job])
    return f"{url}?again={again.pk}" if again else url


def test_a_page_before_the_first_run_explains_how_to_start(
    operator: Client, settings: LazySettings
) -> None:
    empty = {
        "usage": "No usage was counted yet",
        "health": "Nothing was measured yet",
        "triage": "Triage has not run yet",
        "forecast": "python -m pipeline forecast --backtest",
    }
    assert "HOOKSTATION_LAKE" in console.look(operator, PAGES["archive"])
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, lake="/srv/lake")
    for job, page in PAGES.items():
        text = console.look(operator, page)
        assert f"python -m pipeline {job}" in text
        assert empty.get(job, "") in text
        assert start_url(job) in text
        assert FAILED not in text
    assert empty["health"] in console.look(operator, f"{PAGES['health']}?day=2026-11-20")


def test_a_failed_run_is_shown_with_error_log_and_remedy(operator: Client) -> None:
    for job, page in PAGES.items():
        run = make(job, error="<Access> denied\nand a long story")
        text = console.look(operator, page)
        assert FAILED in text
        assert "&lt;Access&gt; denied" in text
        assert "long story" not in text
        assert "No run has succeeded yet" in text
        assert f'href="{console.page_url(run)}"' in text
        assert f'href="{start_url(job, run)}"' in text
        assert operator.get(start_url(job, run)).status_code == 200


def test_a_page_shows_only_the_newest_run_of_its_job(operator: Client) -> None:
    make("triage", "finished", finished_at=clock.now() - timedelta(days=400))
    make("usage", error="of another job")
    assert FAILED not in console.look(operator, PAGES["triage"])

    make("triage", error="it broke")
    text = console.look(operator, PAGES["triage"])
    assert "when the last run succeeded" in text
    assert f"{clock.now() - timedelta(days=400):%Y-%m-%d}" in text

    run = make("triage", "running")
    text = console.look(operator, PAGES["triage"])
    assert FAILED not in text
    assert "A run is in progress" in text
    assert f'href="{console.page_url(run)}"' in text

    make("triage", "finished")
    text = console.look(operator, PAGES["triage"])
    assert "A run is in progress" not in text


def test_run_results_require_permission() -> None:
    make("triage", error="it broke")
    client = console.staff("view_deadcluster")

    text = console.look(client, PAGES["triage"])

    assert FAILED not in text
    assert "it broke" not in text


def test_a_failed_runs_page_has_error_log_and_remedy(operator: Client) -> None:
    run = make("usage", error="It broke.\nwith a long story", log="<i>one</i>")

    page = console.look(operator, console.page_url(run))

    assert "with a long story" in page
    assert "<details open>" in page
    assert "&lt;i&gt;one&lt;/i&gt;" in page
    assert "you can start it again" in page
    assert "It left no log" not in page
    again = reverse("admin:delivery_pipelinerun_again", args=[run.pk])
    assert again in page
    assert operator.get(again).headers["Location"] == start_url("usage", run)
    assert "It left no log" in console.look(operator, console.page_url(make("usage")))


def test_only_finished_runs_are_restarted(operator: Client) -> None:
    urls = {
        state: reverse("admin:delivery_pipelinerun_again", args=[make("health", state).pk])
        for state in ("running", "finished", "failed", "cancelled")
    }
    assert {state: operator.get(url).status_code for state, url in urls.items()} == {
        "running": 403,
        **dict.fromkeys(("finished", "failed", "cancelled"), 302),
    }


def test_restarting_prefills_the_runs_options(operator: Client) -> None:
    asked = {"consumer": "orders/crm", "event_type": ["a.*", "b"], "only_dead": True, "rate": "5"}
    run = make("replay", options=asked)

    form = operator.get(start_url("replay", run)).context["form"]

    assert form.initial["consumer"] == "orders/crm"
    assert form.initial["event_type"] == "a.*\nb"
    assert form.initial["only_dead"] is True
    assert form.initial["dry_run"] is True, "what cannot be taken back is tried first"
    assert "sure" not in form.initial
    for number in ("x", "0", str(make("usage", options={"consumer": "other"}).pk)):
        url = f"{start_url('replay')}?again={number}"
        assert "consumer" not in operator.get(url).context["form"].initial


def test_restarting_keeps_dry_run_and_omits_the_person(operator: Client) -> None:
    for is_dry in (True, False):
        run = make("archive", options={"dry_run": True} if is_dry else {})
        form = operator.get(start_url("archive", run)).context["form"]
        assert form.initial["dry_run"] is is_dry

    run = make("erase", options={"ordering_key": ["customer-7"], "reason": "a letter"})
    answer = operator.get(start_url("erase", run))
    assert answer.context["form"].initial == {"reason": "a letter", "dry_run": True}
    assert "customer-7" not in answer.content.decode()


def test_the_findings_of_a_lake_audit_say_what_to_do(operator: Client) -> None:
    console.fill()
    audit = LakeAudit.objects.exclude(gap=0).get()

    answer = operator.get(console.page_url(audit))

    remedies = [card.remedy for card in answer.context["cards"]]
    assert all(remedies)
    text = html.unescape(answer.content.decode())
    assert [remedy for remedy in remedies if remedy not in text] == []
