"""The console's pages of deliveries: complete, read-only, in index order, with repairs."""

import shlex

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from channels_app.core import ids
from channels_app.models import AuditEntry
from delivery import replay
from delivery.admin import filters as newest_module
from delivery.admin.filters import newest
from delivery.admin.replays import LivePage
from delivery.models import Attempt, Counter, Delivery, Replay
from tests.support import console
from tests.support.counts import make_deliveries
from tests.support.factories import AttemptFactory, ConsumerFactory, DeliveryFactory

pytestmark = pytest.mark.django_db


def shown(client: Client, query: str) -> set[str]:
    """Return the public ids of the deliveries that a list shows."""
    answer = client.get(console.list_url(Delivery, query))
    return {str(row) for row in answer.context["cl"].result_list}


# -- Lists -----------------------------------------------------------------------------------------


def test_a_page_reads_only_its_rows(operator: Client) -> None:
    rows = make_deliveries(ConsumerFactory.create(), 60, state="dead")
    latest_first = [str(row) for row in reversed(rows)]

    with CaptureQueriesContext(connection) as queries:
        second = operator.get(console.list_url(Delivery, "?state=dead&p=2"))

    assert [str(row) for row in second.context["cl"].result_list] == latest_first[25:50]
    assert any("LIMIT 50" in query["sql"] for query in queries)
    assert not any("LIMIT 1000" in query["sql"] for query in queries)
    before = str(rows[-1].pk)
    assert not any(before in query["sql"] for query in queries)


def test_pages_filtered_by_outcome_list_each_row_once(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = ConsumerFactory.create()
    rows = [
        row
        for turn in range(30)
        for row in make_deliveries(
            consumer, 2, state="dead", outcome=("timeout", "gone")[turn % 2], status_code=None
        )
    ]
    expected = [str(row) for row in reversed(rows) if row.outcome == "timeout"]

    def pages(query: str) -> list[list[str]]:
        answers = [operator.get(console.list_url(Delivery, f"{query}&p={n}")) for n in (1, 2, 3)]
        return [[str(row) for row in answer.context["cl"].result_list] for answer in answers]

    everywhere = pages("?outcome=timeout")
    assert everywhere == [expected[:25], expected[25:], []]
    assert pages("?state=dead&outcome=timeout") == everywhere

    monkeypatch.setattr(newest_module, "MAX_ROWS", 20)
    monkeypatch.setattr(newest_module, "MIN_ROWS", 1)
    assert pages("?outcome=timeout") == [expected[:10], [], []]
    assert pages(f"?consumer={consumer.pk}&outcome=timeout") == [expected[:10], [], []]


def test_selected_rows_are_found_after_newer_rows_arrive(operator: Client) -> None:
    consumer = ConsumerFactory.create()
    selected = make_deliveries(consumer, 1, state="dead")[0]
    make_deliveries(consumer, 30, state="dead")

    bulk = {"action": "replay_selected", "_selected_action": [selected.pk]}
    operator.post(console.list_url(Delivery, "?state=dead"), bulk)

    assert Replay.objects.get().matched_count == 1


@pytest.mark.slow("tries every filter")
def test_filters_select_matching_rows(operator: Client) -> None:
    billing = ConsumerFactory.create(client_id="billing")
    crm = ConsumerFactory.create(client_id="crm", channel=billing.channel)
    dead = DeliveryFactory.create(consumer=billing, dead=True)
    sent = DeliveryFactory.create(consumer=billing, delivered=True)
    waits = DeliveryFactory.create(consumer=crm)
    other = DeliveryFactory.create(dead=True, outcome="timeout", status_code=503)
    every = {str(row) for row in (dead, sent, waits, other)}
    channel = f"channel={billing.channel_id}"

    assert shown(operator, "") == every
    assert shown(operator, "?since=1") == every
    assert shown(operator, "?state=dead") == {str(dead), str(other)}
    assert shown(operator, f"?{channel}") == {str(dead), str(sent), str(waits)}
    assert shown(operator, f"?consumer={billing.pk}") == {str(dead), str(sent)}
    assert shown(operator, f"?consumer={billing.pk}&state=dead&since=24") == {str(dead)}
    assert shown(operator, "?outcome=timeout") == {str(other)}
    assert shown(operator, "?status_code=503") == {str(other)}
    assert shown(operator, "?status_code=503&outcome=gone") == set()
    assert shown(operator, "?status_code=abc") == shown(operator, "?status_code=99") == every
    assert shown(operator, f"?{channel}&outcome=timeout") == set()
    assert shown(operator, "?q=billing") == {str(dead), str(sent)}
    assert shown(operator, "?q=billing&state=delivered") == {str(sent)}
    assert shown(operator, f"?q={dead}") == {str(dead)}
    assert shown(operator, f"?q=+{str(dead).capitalize()}+") == {str(dead)}
    assert shown(operator, f"?q={ids.to_public(ids.MESSAGE, sent.message_id)}") == {str(sent)}
    assert shown(operator, f"?q={ids.to_uuid(sent.message_id)}") == {str(sent)}
    assert shown(operator, "?q=nobody") == set()
    assert shown(operator, "?state=nonsense&consumer=x&since=-1&outcome=y") == every


def test_merged_lists_are_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_module, "RANGES", 2)
    consumers = ConsumerFactory.create_batch(3)
    rows = [
        DeliveryFactory.create(consumer=consumer, dead=turn % 2 == 0, delivered=turn % 2 == 1)
        for turn in range(6)
        for consumer in consumers
    ]
    latest_first = [row.pk for row in reversed(rows)]

    assert newest(None, None) == latest_first
    assert newest(None, {"dead", "delivered"}) == latest_first
    assert newest([consumers[0].pk], None, since=rows[9].pk) == [
        row.pk for row in reversed(rows[9:]) if row.consumer_id == consumers[0].pk
    ]
    monkeypatch.setattr(newest_module, "MAX_ROWS", 4)
    monkeypatch.setattr(newest_module, "MIN_ROWS", 1)
    assert newest(None, {"dead", "delivered"}) == latest_first[:4]
    assert newest([], None) == []


@pytest.mark.trap("wrong or slow counts of dead letters")
def test_lists_read_by_index_and_count_nothing(operator: Client) -> None:
    consumer = ConsumerFactory.create()
    DeliveryFactory.create_batch(3, consumer=consumer, dead=True)
    for query in ("", "?state=dead", f"?consumer={consumer.pk}", "?q=billing", "?outcome=timeout"):
        with CaptureQueriesContext(connection) as captured:
            console.look(operator, console.list_url(Delivery, query))
        about = [
            query["sql"]
            for query in captured
            if "delivery_delivery" in query["sql"] and "delivery_counter" not in query["sql"]
        ]
        assert not [sql for sql in about if "COUNT(" in sql], query
        assert all("LIMIT" in sql for sql in about), query


# -- Details ---------------------------------------------------------------------------------------


def test_a_delivery_reads_as_a_timeline(operator: Client) -> None:
    delivery = DeliveryFactory.create(dead=True)
    AttemptFactory.create(
        delivery=delivery,
        number=1,
        error="The consumer answered 500.",
        answer_excerpt=b"<script>alert(1)</script>\xff",
        connect_ms=3,
        total_ms=41,
        remote_address="127.0.0.1",
    )
    AttemptFactory.create(delivery=delivery, number=2, outcome="timeout", status_code=None)

    text = console.look(operator, console.page_url(delivery))

    assert f">{delivery}</a>" in text  # an id keeps its letter case, even in the heading
    assert text.index("Accepted") < text.index("Attempt 1") < text.index("Attempt 2")
    assert "connect 3 ms, total 41 ms" in text
    assert "The consumer answered 500." in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\N{REPLACEMENT CHARACTER}" in text
    assert "<script>alert(1)" not in text


def test_a_body_requires_permission_to_view_messages() -> None:
    delivery = DeliveryFactory.create(dead=True)
    page = console.page_url(delivery)
    attempt = AttemptFactory.create(
        delivery=delivery, number=1, answer_headers="Server: x", answer_excerpt=b"repeated it"
    )
    seen = console.onlooker()
    assert "--data-binary" in console.look(seen, page)
    assert "repeated it" in console.look(seen, page)
    assert "repeated it" in console.look(seen, console.page_url(attempt))
    clerk = console.staff("view_delivery", "view_attempt", name="clerk")
    text = console.look(clerk, page)
    assert "Server: x" not in text
    for place in (page, console.page_url(attempt)):
        assert "repeated it" not in console.look(clerk, place)
    assert "Only people who may view messages see it." in text
    assert "--data-binary" not in text
    assert "hs-hex" not in text


def test_the_request_is_shown_beside_the_response(operator: Client) -> None:
    delivery = DeliveryFactory.create(
        dead=True,
        consumer__url="http://127.0.0.1:9/it's",
        message__body=b'{"who": "it\'s me"}',
        message__headers={"X-Trace": "abc"},
    )
    attempt = AttemptFactory.create(
        delivery=delivery, answer_headers="HTTP/1.1 500 Oh no", answer_excerpt=b"sorry"
    )

    answer = operator.get(console.page_url(delivery))

    (shown,) = [moment for moment in answer.context["moments"] if moment.attempt]
    sent = shown.request.splitlines()
    assert sent[0] == "POST http://127.0.0.1:9/it's"
    assert f"webhook-timestamp: {int(attempt.started_at.timestamp())}" in sent
    assert f"webhook-id: {ids.to_public(ids.MESSAGE, delivery.message_id)}" in sent
    assert "X-Trace: abc" in sent
    assert not [line for line in sent if "signature" in line.lower()]
    assert shown.answer == "HTTP/1.1 500 Oh no\n\nsorry"
    command = shlex.split(answer.context["curl"].replace("\\\n", " "))
    assert "http://127.0.0.1:9/it's" in command
    assert command[-2:] == ["--data-binary", '{"who": "it\'s me"}']


def test_the_next_attempt_is_last_on_the_timeline(operator: Client) -> None:
    waits, held = DeliveryFactory.create(retrying=True), DeliveryFactory.create(in_flight=True)

    assert "Not sent before this instant." in console.look(operator, console.page_url(waits))
    assert "Its worker has until then." in console.look(operator, console.page_url(held))


def test_the_number_of_shown_attempts_is_bounded(operator: Client) -> None:
    delivery = DeliveryFactory.create(dead=True, attempt_count=120)
    for number in range(60, 121):
        AttemptFactory.create(delivery=delivery, number=number)

    text = console.look(operator, console.page_url(delivery))

    assert "Attempt 120<" in text
    assert "Attempt 71<" in text
    assert "Attempt 70<" not in text
    assert "the newest 50 attempts" in text


def test_attempts_are_found_by_their_delivery(operator: Client) -> None:
    attempt, other = AttemptFactory.create(), AttemptFactory.create()

    for term in (str(attempt), str(attempt.delivery)):
        text = console.look(operator, console.list_url(Attempt, f"?q={term}"))
        assert str(attempt) in text
        assert str(other) not in text


# -- Repairs ---------------------------------------------------------------------------------------


def test_one_click_replays_a_dead_delivery(operator: Client) -> None:
    delivery = DeliveryFactory.create(dead=True)
    button = reverse("admin:delivery_delivery_replay", args=[delivery.pk])
    assert button in console.look(operator, console.page_url(delivery))

    answer = operator.post(button, {"reason": "mended"}, follow=True)

    delivery.refresh_from_db()
    assert (delivery.state, delivery.reason, delivery.failure_count) == ("queued", "replayed", 0)
    assert "is queued again" in answer.content.decode()
    entry = AuditEntry.objects.get(action="delivery.replay")
    assert (entry.actor, entry.reason) == ("user:olga", "mended")
    assert Counter.totals()["dead"] == 0
    assert str(delivery) in console.look(
        operator, console.list_url(AuditEntry, f"?q=delivery:{delivery}")
    )


def test_a_button_in_the_list_replays_and_leads_back_but_to_no_other_site(operator: Client) -> None:
    delivery = DeliveryFactory.create(dead=True)
    here = f"http://testserver{console.list_url(Delivery, '?state=dead')}"
    button = reverse("admin:delivery_delivery_replay", args=[delivery.pk])
    assert f'formaction="{button}"' in console.look(operator, here)

    answer = operator.post(button, headers={"referer": here})

    assert answer.headers["Location"] == here
    delivery.refresh_from_db()
    assert delivery.state == "queued"
    assert "formaction" not in console.look(operator, console.list_url(Delivery))
    for elsewhere in ("", "https://elsewhere/admin/delivery/delivery/", "/admin/"):
        answer = operator.post(button, headers={"referer": elsewhere})
        assert answer.headers["Location"] == console.page_url(delivery)


def test_a_delivery_in_flight_is_not_replayed(operator: Client) -> None:
    delivery = DeliveryFactory.create(in_flight=True)
    button = reverse("admin:delivery_delivery_replay", args=[delivery.pk])
    assert button not in console.look(operator, console.page_url(delivery))

    answer = operator.post(button, follow=True)

    assert "only finished deliveries" in answer.content.decode()


def test_a_queued_delivery_is_cancelled(operator: Client) -> None:
    delivery = DeliveryFactory.create()
    button = reverse("admin:delivery_delivery_cancel", args=[delivery.pk])
    assert button in console.look(operator, console.page_url(delivery))

    operator.post(button, {"reason": "wrong"})

    delivery.refresh_from_db()
    assert delivery.state == "cancelled"
    assert AuditEntry.objects.get(action="delivery.cancel").reason == "wrong"


def test_selected_deliveries_become_one_replay(operator: Client) -> None:
    consumer = ConsumerFactory.create()
    dead = DeliveryFactory.create_batch(2, consumer=consumer, dead=True)
    queued = DeliveryFactory.create(consumer=consumer)
    left = DeliveryFactory.create(consumer=consumer, dead=True)

    bulk = {
        "action": "replay_selected",
        "_selected_action": [row.pk for row in (*dead, queued)],
    }
    answer = operator.post(console.list_url(Delivery), bulk, follow=True)

    made = Replay.objects.get()
    assert made.matched_count == 2
    assert f"{made}</a> queues 2 deliveries." in answer.content.decode()
    assert AuditEntry.objects.get(action="replay.create").actor == "user:olga"
    while replay.run_due(timezone.now(), 0):
        pass
    assert {row.state for row in Delivery.objects.filter(pk__in=[row.pk for row in dead])} == {
        "queued"
    }
    left.refresh_from_db()
    assert left.state == "dead"


def test_selected_queued_deliveries_are_cancelled(operator: Client) -> None:
    queued, dead = DeliveryFactory.create(), DeliveryFactory.create(dead=True)

    bulk = {"action": "cancel_selected", "_selected_action": [queued.pk, dead.pk]}
    answer = operator.post(console.list_url(Delivery), bulk, follow=True)

    queued.refresh_from_db()
    assert queued.state == "cancelled"
    assert "1 deliveries are cancelled." in answer.content.decode()
    assert "only a queued one" in answer.content.decode()


def test_a_list_without_pagination_cannot_be_registered() -> None:
    class Silent(LivePage):
        pass

    with pytest.raises(TypeError, match="live"):
        Silent(Replay, admin.site)


@pytest.mark.trap("a key press that sends twice")
def test_replaying_a_delivered_message_asks_for_confirmation(operator: Client) -> None:
    delivered, dead = DeliveryFactory.create(delivered=True), DeliveryFactory.create(dead=True)
    question = 'data-asks="This was delivered. Replay it?"'
    page = console.look(operator, console.list_url(Delivery, "?state=delivered"))
    assert question in page
    assert question not in console.look(operator, console.list_url(Delivery, "?state=dead"))
    assert question in console.look(operator, console.page_url(delivered))
    assert question not in console.look(operator, console.page_url(dead))
