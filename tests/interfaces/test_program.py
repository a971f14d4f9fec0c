"""Pages, hints and errors name the command as users of this installation type it."""

import io
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from channels_app.core import program
from channels_app.core.errors import KeyUnavailable
from delivery.core.reconciliation import Check, remedy
from delivery.models import DeadCluster, Erasure, LakeAudit, PipelineRun, Restore, Segment
from tests.support import console

pytestmark = pytest.mark.django_db
CHECKOUT, INSTALLED = "python manage.py", "hookstation"
PAGES = (
    *("index", "system", "usage", "triage", "health"),
    "forecast",
)


@pytest.fixture(params=[CHECKOUT, INSTALLED])
def started(request: pytest.FixtureRequest) -> Iterator[str]:
    """The command that started the process."""
    program.use(request.param)
    yield request.param
    program.use(CHECKOUT)


def check(text: str, started: str, *commands: str) -> None:
    """Check that the text names these commands as typed here, and in no other way."""
    for command in commands:
        assert f"{started} {command}" in text
    assert text.count("manage.py") == text.count("python manage.py")
    if started == INSTALLED:
        assert "manage.py" not in text
        assert "python -m pipeline" not in text


def test_pages_of_a_new_installation_name_the_program(started: str) -> None:
    client = console.operator()
    texts = {name: console.look(client, reverse(f"admin:{name}")) for name in PAGES}
    for model in (Erasure, LakeAudit, PipelineRun, Restore, Segment):
        texts[model._meta.label] = console.look(client, console.list_url(model))
    for text in texts.values():
        check(text, started)
    check(texts["index"], started, "create_api_key first", "broker")
    check(texts["system"], started, "broker")
    job = "python -m pipeline" if started == CHECKOUT else "hookstation pipeline"
    assert f"{job} usage" in texts["usage"]
    assert f"{job} triage" in texts["triage"]


def test_pipeline_advice_names_the_program(started: str) -> None:
    console.fill()
    DeadCluster.objects.filter(place=1).update(advice="Ask `manage.py doctor`.")
    text = console.look(console.operator(), reverse("admin:triage"))
    assert f"Ask `{started} doctor`." in text


def test_readiness_hints_name_the_program(started: str) -> None:
    hints: dict[str, Any] = Client().get("/readyz").json()["checks"]
    check(hints["pumps"]["hint"], started, "broker", "worker")


def test_doctor_hints_name_the_program(started: str) -> None:
    out = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("doctor", stdout=out)
    check(" ".join(out.getvalue().split()), started, "broker")


def test_reconciliation_remedies_name_the_program(started: str) -> None:
    texts = [remedy(found, "", "") for found in Check]
    for text in texts:
        check(text, started)
    check(remedy(Check.COUNTERS, "", ""), started, "repair_counters")


def test_errors_name_the_program(started: str) -> None:
    with pytest.raises(CommandError) as refused:
        call_command("publish", "hooks.jsonl", channel="orders")
    check(str(refused.value), started, "create_api_key PRODUCER")
    check(KeyUnavailable("k").detail, started, "doctor")
