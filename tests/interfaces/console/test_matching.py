"""The console's replay by filter: it counts, replays exactly that, and shows the progress."""

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from channels_app.models import AuditEntry
from delivery import replay
from delivery.admin import dead_letter_groups
from delivery.models import Replay
from tests.support import console
from tests.support.counts import make_deliveries
from tests.support.factories import ConsumerFactory, DeliveryFactory

pytestmark = pytest.mark.django_db

MATCHING = reverse("admin:delivery_delivery_matching")
CAUSES = reverse("admin:delivery_delivery_causes")


def counted(client: Client, query: str) -> int | None:
    preview = client.get(MATCHING + query).context["preview"]
    return preview.count.number if preview else None


def test_counting_uses_the_lists_filters(operator: Client) -> None:
    billing = ConsumerFactory.create(client_id="billing")
    crm = ConsumerFactory.create(client_id="crm", channel=billing.channel)
    make_deliveries(billing, 2, status_code=503)
    make_deliveries(billing, 3, outcome="timeout")
    make_deliveries(crm, 4)
    DeliveryFactory.create(dead=True)
    here = f"?channel={billing.channel_id}"

    assert counted(operator, here) == 9
    assert counted(operator, f"?consumer={crm.pk}") == 4
    assert counted(operator, f"?consumer={billing.pk}&outcome=timeout") == 3
    assert counted(operator, f"?consumer={billing.pk}&status_code=503") == 2
    assert counted(operator, f"?consumer={billing.pk}&status_code=503&outcome=timeout") == 0
    assert counted(operator, "?q=crm&state=dead") == 4
    assert counted(operator, f"{here}&state=delivered") == 0
    assert counted(operator, f"{here}&state=queued") == 9, "only what is finished can be replayed"
    assert counted(operator, f"{here}&since=1") == 9
    assert counted(operator, f"{here}&to=2020-01-01T00:00:00Z") == 0
    assert counted(operator, "") is None
    assert not Replay.objects.exists()


def test_a_replay_sends_the_counted_deliveries(operator: Client) -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 3)
    text = console.look(operator, f"{MATCHING}?consumer={consumer.pk}")
    assert "Replay 3" in text
    form = {
        "filter": operator.get(f"{MATCHING}?consumer={consumer.pk}").context["preview"].filter,
        "rate_per_second": "50",
        "reason": "mended",
    }

    answer = operator.post(MATCHING, form)

    made = Replay.objects.get()
    assert answer.headers["Location"] == console.page_url(made)
    assert (made.matched_count, made.rate_per_second, made.reason) == (3, 50.0, "mended")
    entry = AuditEntry.objects.get(action="replay.create")
    assert (entry.actor, entry.reason) == ("user:olga", "mended")


def test_an_impossible_replay_or_filter_is_refused(operator: Client) -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 1)
    here = f"{MATCHING}?consumer={consumer.pk}"

    for form, sentence in (
        ({"filter": "{"}, "The filter is not valid."),
        ({"filter": "{}"}, "Name a channel"),
        ({"filter": json.dumps({"channel": "nowhere"})}, "There is no channel nowhere"),
        ({"filter": "{}", "rate_per_second": "0"}, "greater than or equal to 0.001"),
    ):
        text = operator.post(here, form | {"reason": "kept"}).content.decode()
        assert sentence in text
        assert 'value="kept"' in text
    assert not Replay.objects.exists()
    assert "between the years" in console.look(operator, f"{here}&from=1850-01-01T00:00:00Z")
    assert "from 100 to 999 is needed" in console.look(operator, f"{here}&status_code=5xx")
    turned = f"{here}&from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z"
    assert "The range ends before it begins." in console.look(operator, turned)
    assert operator.get(turned).context["wanted"].errors.keys() == {"to"}
    assert "Choose from delivered" in console.look(operator, f"{here}&outcome=nonsense")


def test_the_progress_bar_and_the_totals_are_right(operator: Client) -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 5)
    operator.post(
        f"{MATCHING}?consumer={consumer.pk}",
        {"filter": json.dumps({"channel": consumer.channel.slug, "consumer": consumer.client_id})},
    )
    made = Replay.objects.get()
    bar = reverse("admin:delivery_replay_progress", args=[made.pk])
    assert bar in console.look(operator, console.page_url(made))
    assert "HX-Refresh" not in operator.get(bar).headers

    replay.run_slice(made, timezone.now(), 2)
    assert "2 of 5 are queued again" in console.look(operator, bar)
    stop = reverse("admin:delivery_replay_stop", args=[made.pk])
    assert stop in console.look(operator, console.page_url(made))
    operator.post(stop, {"_form_submitted": "True", "reason": "enough"})

    assert Replay.objects.get().state == "cancelled"
    assert AuditEntry.objects.get(action="replay.cancel").reason == "enough"
    assert stop not in console.look(operator, console.page_url(made))
    ended = operator.get(bar)
    assert ended.headers["HX-Refresh"] == "true"
    facts = dict(ended.context["live"].facts)
    assert (facts["Queued again"], facts["Skipped"]) == (2, 3)
    assert f"consumer={consumer.pk}&amp;state=dead" in console.look(
        operator, console.page_url(made)
    )


# -- By cause --------------------------------------------------------------------------------------


def test_dead_letters_are_grouped_by_consumer_outcome_and_status(operator: Client) -> None:
    billing, crm = ConsumerFactory.create_batch(2)
    make_deliveries(billing, 3, status_code=503)
    make_deliveries(billing, 2, status_code=500)
    make_deliveries(billing, 1, outcome="timeout", status_code=None)
    make_deliveries(crm, 2, outcome="client_error", status_code=404)
    make_deliveries(crm, 2, state="delivered", outcome="delivered")

    first, second = dead_letter_groups.piles()

    assert (first.consumer, first.count, first.is_whole) == (billing, 6, True)
    assert [(cause.title, cause.count, cause.statuses) for cause in first.causes] == [
        ("server error", 5, [(503, 3), (500, 2)]),
        ("timeout", 1, []),
    ]
    assert (second.consumer, second.count) == (crm, 2)
    text = console.look(operator, CAUSES)
    assert f"state=dead&amp;consumer={billing.pk}&amp;outcome=timeout" in text
    assert "causes are counted among" not in text


def test_the_count_is_exact_and_causes_name_their_sample(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_groups, "SCAN_ROWS", 10)
    make_deliveries(ConsumerFactory.create(), 2)
    make_deliveries(ConsumerFactory.create(), 30)

    with CaptureQueriesContext(connection) as captured:
        text = console.look(operator, CAUSES)

    assert "causes are counted among the newest 8" in text
    about = [query["sql"] for query in captured if 'FROM "delivery_delivery"' in query["sql"]]
    assert all("LIMIT" in sql for sql in about)


def test_the_sample_of_causes_is_shared_between_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letter_groups, "SCAN_ROWS", 100)
    some: dict[int, Any] = {1: 10, 2: 1000, 3: 5}
    assert dead_letter_groups.shares(some) == {3: 5, 1: 10, 2: 85}
    assert dead_letter_groups.shares({}) == {}
