"""Deliveries over HTTP: details with attempts, lists, dead letters, reconciling, and repair."""

import base64
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from channels_app.core import ids, times
from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer, new_id
from channels_app.registry.cache import config_cache
from delivery.models import Delivery, Replay
from tests.support.calling import Api, problem
from tests.support.counts import assert_counters_are_true, key_at, make_deliveries, public
from tests.support.factories import (
    AttemptFactory,
    ConsumerFactory,
    DeliveryFactory,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def reader() -> Api:
    return Api(scopes=["read"])


@pytest.fixture
def repairer() -> Api:
    return Api(scopes=["replay"])


def at(consumer: Consumer, tail: str = "deliveries") -> str:
    return f"/channels/{consumer.channel.slug}/consumers/{consumer.client_id}/{tail}"


# -- one delivery ------------------------------------------------------------------------------


def test_a_delivery_shows_its_attempts_in_order(reader: Api) -> None:
    row = DeliveryFactory.create(retrying=True, attempt_count=3)
    started = clock.now() - timedelta(minutes=5)
    AttemptFactory.create(
        delivery=row,
        number=1,
        started_at=started,
        outcome="server_error",
        status_code=500,
        error="The endpoint answered 500.",
        answer_headers="HTTP/1.1 500 Oops\r\n",
        answer_excerpt="naïve".encode(),
        connect_ms=3,
        first_byte_ms=20,
        total_ms=21,
        remote_address="127.0.0.1",
        worker="host/1/pump-0",
    )
    AttemptFactory.create(delivery=row, number=2, answer_excerpt=b"\xff\xfe\x00")
    AttemptFactory.create(
        delivery=row, number=3, answer_excerpt="€€".encode()[:4], status_code=None
    )

    answer = reader.get(f"/deliveries/{public(row)}")

    body = answer.json()
    assert answer.headers["ETag"] == '"1"'
    assert (body["state"], body["attempt_count"]) == ("Retry-Delivery", 3)
    first, second, third = body["attempts"]
    assert first == {
        "id": first["id"],
        "number": 1,
        "started_at": times.text(started),
        "outcome": "server_error",
        "status_code": 500,
        "error": "The endpoint answered 500.",
        "connect_ms": 3,
        "first_byte_ms": 20,
        "total_ms": 21,
        "remote_address": "127.0.0.1",
        "response": {"headers": "HTTP/1.1 500 Oops\r\n", "body": "naïve"},
    }
    assert base64.b64decode(second["response"]["body_base64"]) == b"\xff\xfe\x00"
    assert third["response"]["body"] == "€"
    assert third["status_code"] is None
    operator = Api(admin=True).get(f"/deliveries/{public(row)}").json()
    assert operator["attempts"][0]["worker"] == "host/1/pump-0"


def test_a_delivery_that_did_not_move_is_not_sent_again(reader: Api) -> None:
    row = DeliveryFactory.create()
    path = f"/deliveries/{public(row)}"

    known = reader.get(path, if_none_match='"1"')
    assert (known.status_code, known.content) == (304, b"")
    Delivery.objects.filter(id=row.id).update(version=2)
    assert reader.get(path, if_none_match='"1"').status_code == 200


def test_a_malformed_or_unknown_id_is_not_found() -> None:
    api = Api(admin=True)
    for text in ("dlv_1", "msg_0000000000000", "%00", ids.to_public("dlv", new_id())):
        for answer in (
            api.get(f"/deliveries/{text}"),
            *(api.post(f"/deliveries/{text}/{verb}", {}) for verb in ("replay", "cancel")),
        ):
            assert problem(answer) == (404, "unknown_delivery", "")


# -- repair ------------------------------------------------------------------------------------


def test_one_delivery_is_replayed(repairer: Api) -> None:
    row = DeliveryFactory.create(dead=True)

    answer = repairer.post(f"/deliveries/{public(row)}/replay", {"reason": "fixed the endpoint"})

    assert (answer.status_code, answer.headers["ETag"]) == (202, '"2"')
    body = answer.json()
    assert answer.headers["Location"] == body["url"]
    assert (body["state"], body["failure_count"]) == ("Retry-Delivery", 0)
    assert body["replay_id"] == ids.to_public("rpl", Replay.objects.get().id)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason) == ("delivery.replay", "fixed the endpoint")
    assert_counters_are_true()
    assert problem(repairer.post(f"/deliveries/{public(row)}/replay")) == (409, "not_finished", "")


def test_an_invalid_replay_or_cancellation_is_refused(repairer: Api) -> None:
    dead, queued = DeliveryFactory.create(dead=True), DeliveryFactory.create()
    invalid: list[tuple[dict[str, Any], str]] = [
        ({"reason": 5}, "reason"),
        ({"reason": "x" * 501}, "reason"),
        ({"rate": 5}, "rate"),
    ]
    for path in (f"{public(dead)}/replay", f"{public(queued)}/cancel"):
        for body, field in invalid:
            assert problem(repairer.post(f"/deliveries/{path}", body))[::2] == (422, field), path
    assert set(Delivery.objects.values_list("version", flat=True)) == {1}


# -- lists -------------------------------------------------------------------------------------


def listed(api: Api, path: str) -> list[str]:
    answer = api.get(path)
    assert answer.status_code == 200, answer.content
    return [row["id"] for row in answer.json()["items"]]


def test_the_list_without_a_state_merges_them_all(reader: Api) -> None:
    consumer = ConsumerFactory.create()
    traits: list[dict[str, Any]] = [
        {"dead": True},
        {},
        {"in_flight": True},
        {"delivered": True},
        {"state": "awaiting_ack"},
        {"cancelled": True},
        {"retrying": True},
        {"dead": True, "outcome": "timeout"},
    ]
    rows = [DeliveryFactory.create(consumer=consumer, **one) for one in traits]
    DeliveryFactory.create(dead=True)
    newest_first = [public(row) for row in reversed(rows)]

    assert listed(reader, at(consumer)) == newest_first
    found, path = [], f"{at(consumer)}?limit=3"
    while path:
        page = reader.get(path).json()
        found += [row["id"] for row in page["items"]]
        path = page["next"] and f"{at(consumer)}?cursor={quote(page['next'])}"
    assert found == newest_first
    assert listed(reader, at(consumer, "dead-letters")) == [newest_first[0], newest_first[7]]
    for tail in ("deliveries", "dead-letters"):
        assert listed(reader, f"{at(consumer, tail)}?outcome=timeout") == newest_first[:1]


def test_a_state_is_named_as_stored_or_as_shown(reader: Api) -> None:
    consumer = ConsumerFactory.create()
    traits: dict[str, dict[str, Any]] = {
        "Queued": {},
        "Retry-Delivery": {"retrying": True},
        "In-flight": {"in_flight": True},
        "Retry-In-flight": {"in_flight": True, "attempt_count": 2, "failure_count": 1},
        "Awaiting-Ack": {"state": "awaiting_ack"},
        "Delivered": {"delivered": True},
        "Dead": {"dead": True},
        "Cancelled": {"cancelled": True},
    }
    rows = {
        name: public(DeliveryFactory.create(consumer=consumer, **one))
        for name, one in traits.items()
    }

    for name, one in rows.items():
        assert listed(reader, f"{at(consumer)}?state={name}") == [one]
        shown = reader.get(f"/deliveries/{one}").json()
        assert shown["state"] == name
        assert (shown["next_attempt_at"] is None) == (name not in {"Queued", "Retry-Delivery"})
    queued = listed(reader, f"{at(consumer)}?state=queued")
    assert queued == [rows["Retry-Delivery"], rows["Queued"]]
    flying = listed(reader, f"{at(consumer)}?state=in_flight")
    assert flying == [rows["Retry-In-flight"], rows["In-flight"]]


def test_a_filter_that_cannot_be_used_is_refused(reader: Api) -> None:
    """Those that lists of messages have too are tested there."""
    consumer = ConsumerFactory.create()
    for tail, queries in (
        ("deliveries", ("state=retry", "state=DEAD", "outcome=moon", "outcome=", "cursor=abc")),
        ("deliveries", ("status_code=99", "status_code=5xx", "status_code=%C2%B9%C2%B9%C2%B9")),
        ("dead-letters", ("state=dead", "outcome=moon", "cursor=abc")),
    ):
        for query in queries:
            wrong = (422, "invalid_parameter", query.partition("=")[0])
            assert problem(reader.get(f"{at(consumer, tail)}?{query}")) == wrong, query


def test_the_queries_of_an_answer_do_not_depend_on_its_rows(reader: Api) -> None:
    consumer = ConsumerFactory.create()
    message = make_deliveries(consumer, 1)[0].message

    def queries() -> list[int]:
        found = []
        for url in (at(consumer), f"/messages/{ids.to_public(ids.MESSAGE, message.id)}"):
            clock.sync()  # on a slow machine the clock would query the database once more
            config_cache.channels()  # reading all of it takes more queries than reading a change
            with CaptureQueriesContext(connection) as captured:
                assert reader.get(url).status_code == 200
            found.append(len(captured))
        return found

    few = queries()
    make_deliveries(consumer, 5)
    for _ in range(5):
        other = ConsumerFactory.create(channel=consumer.channel)
        DeliveryFactory.create(message=message, consumer=other, dead=True)
    assert queries() == few


def test_a_removed_consumers_history_can_be_read(reader: Api) -> None:
    row = DeliveryFactory.create(dead=True, consumer=ConsumerFactory.create(retired=True))

    assert listed(reader, at(row.consumer, "dead-letters")) == [public(row)]


# -- a consumer's messages, for reconciling ----------------------------------------------------


def aged(consumer: Consumer, number: int, seconds: float = 60.0, **traits: Any) -> list[Delivery]:
    """Create deliveries that are some seconds old."""
    instant = clock.now() - timedelta(seconds=seconds)
    rows = make_deliveries(consumer, number, accepted_at=instant, **traits)
    for row in rows:
        old, row.id = row.id, key_at(instant)
        Delivery.objects.filter(id=old).update(id=row.id)
    return rows


def notes(api: Api, consumer: Consumer, query: str = "") -> tuple[list[str], str | None]:
    body = api.get(at(consumer, "messages") + query).json()
    return [row["message_id"] for row in body["items"]], body["next"]


def test_expected_messages_are_listed_oldest_first_after_a_message(reader: Api) -> None:
    consumer = ConsumerFactory.create()
    rows = aged(consumer, 2) + aged(consumer, 2, 50, state="delivered", outcome="delivered")
    rows += aged(consumer, 1, 40, state="queued", due_at=clock.now())
    messages = [ids.to_public("msg", row.message_id) for row in rows]
    aged(ConsumerFactory.create(channel=consumer.channel), 1)

    assert notes(reader, consumer) == (messages, None)
    first, cursor = notes(reader, consumer, "?limit=2")
    assert cursor is not None
    second, cursor = notes(reader, consumer, f"?cursor={quote(cursor)}")
    assert cursor is not None
    third, cursor = notes(reader, consumer, f"?cursor={quote(cursor)}")
    assert (first, second, third, cursor) == (messages[:2], messages[2:4], messages[4:], None)
    assert notes(reader, consumer, f"?after={messages[1]}") == (messages[2:], None)
    assert notes(reader, consumer, f"?after={messages[4]}") == ([], None)
    half, cursor = notes(reader, consumer, f"?after={messages[0]}&limit=3")
    assert half == messages[1:4]
    assert notes(reader, consumer, f"?cursor={quote(cursor or '')}") == (messages[4:], None)


def test_expected_messages_continue_after_a_deleted_message_until_two_seconds_ago(
    reader: Api,
) -> None:
    consumer = ConsumerFactory.create()
    aged(consumer, 1, 90)
    (later,) = aged(consumer, 1, 30)
    make_deliveries(consumer, 1)
    gone = ids.to_public("msg", key_at(clock.now() - timedelta(seconds=60)))

    found = [ids.to_public("msg", later.message_id)]
    assert notes(reader, consumer, f"?after={gone}") == (found, None)


def test_after_must_be_a_message_id(reader: Api) -> None:
    path = at(ConsumerFactory.create(), "messages")
    for text in ("msg_1", "dlv_0000000000000", "", "yesterday"):
        wrong = (422, "invalid_parameter", "after")
        assert problem(reader.get(f"{path}?after={text}")) == wrong
