"""The console's page of triage: counts, descriptions, and a link to the replay of each kind."""

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from channels_app.models import Consumer
from delivery.admin import triage
from delivery.models import DeadCluster, PipelineRun
from tests.support import console
from tests.support.factories import DeliveryFactory

pytestmark = pytest.mark.django_db

PAGE = reverse("admin:triage")
REPLAY = "Replay these 2"


def run(**result: object) -> None:
    PipelineRun.objects.create(
        job="triage",
        state="finished",
        requested_by="mia",
        requested_at=timezone.now(),
        result=result,
    )


def fill() -> None:
    console.dead_letters(DeliveryFactory.create(dead=True), timezone.now())


def test_triage_without_failures_says_so(operator: Client) -> None:
    run(since="2026-11-01T00:00:00+00:00", until="2026-11-22T00:00:00+00:00")

    text = console.look(operator, PAGE)

    assert "No dead letters" in text
    assert "2026-11-01 00:00" in text


def test_a_failure_group_has_count_description_and_a_replay(operator: Client) -> None:
    fill()

    text = console.look(operator, PAGE)

    assert "<strong>20</strong> dead letters in <strong>1</strong> cluster" in text
    assert "17 more are in rarer clusters" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; line #" in text
    assert "No earlier attempt at" in text
    assert "1 of them are in the archive" in text
    assert REPLAY in text
    assert "Run again" in text
    assert "The filter also matches 1" in text
    ((line,),) = (triage.lines(DeadCluster.objects.filter(place=1)),)
    assert line.sample is not None
    (part,) = line.parts
    assert operator.get(part.replay_url).context["preview"] is not None
    assert operator.get(part.list_url).status_code == 200


def test_a_group_that_must_not_be_replayed_has_no_replay(operator: Client) -> None:
    fill()
    DeadCluster.objects.filter(place=1).update(kind="never")
    assert REPLAY not in console.look(operator, PAGE)

    DeadCluster.objects.filter(place=1).update(kind="replay")
    Consumer.objects.update(state="retired")
    assert REPLAY not in console.look(operator, PAGE)


def test_responses_require_permission_to_view_messages() -> None:
    fill()
    client = console.staff("view_deadcluster")

    assert "line #" not in console.look(client, PAGE)
    assert "line #" in console.look(console.operator(), PAGE)


def test_groups_beyond_the_first_are_on_further_pages(operator: Client) -> None:
    fill()
    group = DeadCluster.objects.get(place=1)
    for place in range(3, triage.SHOWN + 3):
        group.pk, group.place = None, place
        group.save()

    first, second = (operator.get(f"{PAGE}?page={page}").context for page in (1, 2))

    assert [line.cluster.place for line in second["lines"]] == [triage.SHOWN + 2]
    assert [line.cluster.place for line in first["lines"]][:2] == [1, 3]
    assert first["kinds"] == second["kinds"] == triage.SHOWN + 1
    assert 'href="?page=2#page"' in console.look(operator, PAGE)
