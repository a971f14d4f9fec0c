"""Messages over HTTP: reading, exact bodies, moving, cancelling, and permissions."""

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest

from channels_app.core import ids, times
from channels_app.database import clock
from channels_app.models import (
    AuditEntry,
    IdempotencyRecord,
    Message,
    MessageBody,
    Producer,
    new_id,
)
from delivery.models import Delivery
from tests.support.calling import Api, problem
from tests.support.counts import assert_counters_are_true, make_messages, public
from tests.support.factories import (
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    MessageFactory,
    ProducerFactory,
    TeamFactory,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def reader() -> Api:
    return Api(scopes=["read"])


# -- one message -------------------------------------------------------------------------------


def test_a_message_shows_how_each_consumer_received_it(reader: Api) -> None:
    message = MessageFactory.create(
        dispatched=True, event_type="order.paid", ordering_key="k", headers={"traceparent": "00-1"}
    )
    consumers = [ConsumerFactory.create(channel=message.channel) for _ in range(3)]
    DeliveryFactory.create(message=message, consumer=consumers[0], delivered=True)
    retry = DeliveryFactory.create(message=message, consumer=consumers[1], retrying=True)
    DeliveryFactory.create(message=message, consumer=consumers[2])

    answer = reader.get(f"/messages/{public(message)}")

    assert (answer.status_code, answer.headers["ETag"]) == (200, '"1"')
    body = answer.json()
    assert (body["id"], body["scheduled"]) == (public(message), False)
    assert body["state"] == "Out-for-delivery"
    assert body["headers"] == {"traceparent": "00-1"}
    assert body["body_bytes"] == 9
    assert {row["consumer"]: row["state"] for row in body["deliveries"]} == {
        consumers[0].client_id: "Delivered",
        consumers[1].client_id: "Retry-Delivery",
        consumers[2].client_id: "Queued",
    }
    shown = next(row for row in body["deliveries"] if row["id"] == public(retry))
    assert retry.due_at is not None
    assert shown["next_attempt_at"] == times.text(retry.due_at)
    outcome = (shown["attempt_count"], shown["outcome"], shown["status_code"])
    assert outcome == (1, "server_error", 500)


@pytest.mark.trap("a state that never ends")
def test_a_message_is_out_for_delivery_until_each_delivery_has_ended(reader: Api) -> None:
    message = MessageFactory.create(dispatched=True)
    slug, number = message.channel.slug, public(message)
    ends = {"delivered": 1, "dead": 1, "cancelled": 1}
    for end in ends:
        consumer = ConsumerFactory.create(channel=message.channel)
        DeliveryFactory.create(message=message, consumer=consumer, **{end: True})
    last = DeliveryFactory.create(
        message=message, consumer=ConsumerFactory.create(channel=message.channel)
    )

    def answers() -> set[tuple[str, ...]]:
        """Return the state from the message itself, from the list and from the lists by state."""
        one = reader.get(f"/messages/{number}").json()["state"]
        (in_list,) = reader.get(f"/channels/{slug}/messages").json()["items"]
        by_state = [
            state for state in Message.Shown.values if listed(reader, slug, f"?state={state}")
        ]
        return {(one,), (in_list["state"],), tuple(by_state)}

    assert answers() == {("Out-for-delivery",)}
    for state in ("in_flight", "awaiting_ack"):
        Delivery.objects.filter(pk=last.pk).update(state=state)
        assert answers() == {("Out-for-delivery",)}
    Delivery.objects.filter(pk=last.pk).update(state="dead", due_at=None)
    assert answers() == {("Finished",)}
    # A replay makes the message unfinished again.
    Delivery.objects.filter(pk=last.pk).update(state="queued", due_at=clock.now())
    assert answers() == {("Out-for-delivery",)}


def test_a_message_is_scheduled_until_its_fan_out_finds_no_consumers(reader: Api) -> None:
    waiting = MessageFactory.create(scheduled=True)
    finished = MessageFactory.create(channel=waiting.channel, dispatched=True, scheduled=True)
    for message, state in ((waiting, "Acknowledged"), (finished, "Finished")):
        body = reader.get(f"/messages/{public(message)}").json()
        assert (body["state"], body["scheduled"]) == (state, message is waiting)
        assert body["deliveries"] == []
    assert listed(reader, waiting.channel.slug, "?state=scheduled") == [public(waiting)]


def test_a_malformed_or_unknown_id_is_not_found(reader: Api) -> None:
    for text in ("msg_1", "dlv_0000000000000", "%00", ids.to_public("msg", new_id())):
        for path in (f"/messages/{text}", f"/messages/{text}/body"):
            assert problem(reader.get(path)) == (404, "unknown_message", "")


# -- isolation of teams ------------------------------------------------------------------------


def test_a_team_sees_its_published_and_received_messages() -> None:
    channel = ChannelFactory.create(external=True)
    mine, theirs = TeamFactory.create(), TeamFactory.create()
    my_consumer = ConsumerFactory.create(channel=channel, team=mine)
    their_consumer = ConsumerFactory.create(channel=channel, team=theirs)
    published = MessageFactory.create(
        channel=channel, producer=ProducerFactory.create(team=mine), dispatched=True
    )
    DeliveryFactory.create(message=published, consumer=their_consumer)
    received = MessageFactory.create(
        channel=channel, producer=ProducerFactory.create(team=theirs), dispatched=True
    )
    for consumer in (my_consumer, their_consumer):
        DeliveryFactory.create(message=received, consumer=consumer)
    hidden = MessageFactory.create(
        channel=channel, producer=ProducerFactory.create(team=theirs), dispatched=True
    )
    DeliveryFactory.create(message=hidden, consumer=their_consumer)
    teamless = MessageFactory.create(channel=channel, dispatched=True)
    api = Api(team=mine, scopes=["read"])

    def consumers(message: Message) -> list[str]:
        body = api.get(f"/messages/{public(message)}").json()
        return [row["consumer"] for row in body["deliveries"]]

    assert consumers(published) == [their_consumer.client_id]
    assert consumers(received) == [my_consumer.client_id]
    for message in (hidden, teamless):
        assert problem(api.get(f"/messages/{public(message)}")) == (404, "unknown_message", "")
    listed = api.get(f"/channels/{channel.slug}/messages").json()["items"]
    assert [row["id"] for row in listed] == [public(received), public(published)]
    without = Api(scopes=["read"]).get(f"/channels/{channel.slug}/messages").json()["items"]
    assert [row["id"] for row in without] == [public(teamless)]
    every = Api(admin=True).get(f"/channels/{channel.slug}/messages").json()["items"]
    assert len(every) == 4


# -- the body ----------------------------------------------------------------------------------


@pytest.mark.parametrize("encrypt", [True, False])
def test_the_body_comes_back_byte_for_byte_and_is_not_run(reader: Api, encrypt: bool) -> None:
    data = b"<script>alert(1)</script>\x00\xff\r\n"
    channel = ChannelFactory.create(encrypt_bodies=encrypt)
    message = MessageFactory.create(
        channel=channel, body=data, content_type="text/html; charset=latin-1"
    )

    answer = reader.get(f"/messages/{public(message)}/body")

    assert answer.content == data
    assert answer.headers["Content-Type"] == "text/html; charset=latin-1"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{public(message)}"'
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer.headers["Content-Security-Policy"]


def test_a_body_without_a_content_type_is_octet_stream(reader: Api) -> None:
    message = MessageFactory.create(content_type="", body=b"")

    answer = reader.get(f"/messages/{public(message)}/body")

    assert (answer.content, answer.headers["Content-Type"]) == (b"", "application/octet-stream")


def test_a_body_that_cannot_be_opened_is_not_found(reader: Api) -> None:
    broken, missing, foreign = MessageFactory.create_batch(3)
    MessageBody.objects.filter(message_id=broken.id).update(data=b"\x01damaged")
    MessageBody.objects.filter(message_id=missing.id).delete()
    MessageBody.objects.filter(message_id=foreign.id).update(
        data=b"\x01" + b"x" * 40, key_id=b"xxxx".hex()
    )

    for message, code in ((broken, "integrity_error"), (missing, "body_unreadable")):
        answer = reader.get(f"/messages/{public(message)}/body")
        assert problem(answer) == (404, code, "")
    answer = reader.get(f"/messages/{public(foreign)}/body")
    assert problem(answer) == (503, "key_missing", "")


# -- moving ------------------------------------------------------------------------------------


@pytest.fixture
def owner() -> Api:
    return Api(scopes=["publish", "read"])


def own_delivery(owner: Api, **traits: Any) -> Delivery:
    assert owner.key is not None
    return DeliveryFactory.create(message__producer=owner.key.producer, **traits)


def test_a_waiting_message_is_moved(owner: Api) -> None:
    row = own_delivery(owner)
    later = clock.now().replace(microsecond=0) + timedelta(days=1)

    answer = owner.patch(
        f"/messages/{public(row.message)}",
        {"priority": 9, "due_at": later.isoformat(), "reason": "not before tomorrow"},
    )

    assert (answer.status_code, answer.headers["ETag"]) == (200, '"2"')
    body = answer.json()
    assert (body["priority"], body["due_at"]) == (9, times.text(later))
    assert body["deliveries"][0]["next_attempt_at"] == times.text(later)
    entry = AuditEntry.objects.get()
    assert owner.key is not None
    assert (entry.actor, entry.reason) == (f"key:{owner.key.key_id}", "not before tomorrow")
    in_ms = int(later.timestamp() * 1000) + 1
    body = owner.patch(f"/messages/{public(row.message)}", {"due_at": in_ms}).json()
    assert times.instant(body["due_at"]) == times.instant(in_ms)


def test_an_invalid_move_is_refused(owner: Api) -> None:
    path = f"/messages/{public(own_delivery(owner).message)}"
    invalid: list[tuple[dict[str, Any], str]] = [
        ({}, ""),
        ({"reason": "just so"}, ""),
        ({"priority": 10}, "priority"),
        ({"priority": None}, "priority"),
        ({"due_at": "soon"}, "due_at"),
        ({"due_at": None}, "due_at"),
        ({"due_at": "9999-12-31T23:59:59.9Z"}, "due_at"),
        ({"priority": 5, "reason": "x" * 501}, "reason"),
        ({"priority": 5, "colour": "red"}, "colour"),
        ({"priority": 5, "\ud800": 1}, "\\ud800"),
    ]
    for body, field in invalid:
        assert problem(owner.patch(path, body)) == (422, "invalid_fields", field), body
    Producer.objects.update(max_priority=5)
    refused = owner.patch(path, {"priority": 6})
    assert problem(refused) == (422, "priority_too_high", "priority")
    assert Message.objects.get().version == 1


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_if_match_guards_a_change(owner: Api, method: str) -> None:
    row = own_delivery(owner)
    path = f"/messages/{public(row.message)}"
    body = {"priority": 5} if method == "PATCH" else None

    assert problem(owner.call(method, path, body, if_match='"7"'))[:2] == (412, "stale_version")
    assert problem(owner.call(method, path, body, if_match="7"))[0] == 422
    assert owner.call(method, path, body, if_match='"7", "1"').status_code == 200
    assert problem(owner.call(method, path, body, if_match='"1"'))[0] == 412
    assert owner.call(method, path, body, if_match="*").status_code == 200


# -- cancelling --------------------------------------------------------------------------------


def test_a_message_is_cancelled(owner: Api) -> None:
    row = own_delivery(owner)
    DeliveryFactory.create(
        message=row.message, consumer=ConsumerFactory.create(channel=row.channel), delivered=True
    )
    path = f"/messages/{public(row.message)}"

    answer = owner.delete(f"{path}?reason={quote('wrong amount, Zoë')}")

    assert (answer.status_code, answer.headers["ETag"]) == (200, '"2"')
    body = answer.json()
    assert body["cancelled_count"] == 1
    assert sorted(row["state"] for row in body["deliveries"]) == ["Cancelled", "Delivered"]
    assert AuditEntry.objects.get().reason == "wrong amount, Zoë"
    assert owner.delete(path).json()["cancelled_count"] == 0
    assert_counters_are_true()


def test_the_reason_of_a_cancellation_is_checked(owner: Api) -> None:
    path = f"/messages/{public(own_delivery(owner).message)}"
    for query in ("reason=" + "x" * 501, "reason=%00", "reason=%1B", "why=so"):
        wrong = (422, "invalid_parameter", query.partition("=")[0])
        assert problem(owner.delete(f"{path}?{query}")) == wrong
    assert Delivery.objects.get().state == "queued"


# -- the list ----------------------------------------------------------------------------------


def listed(api: Api, channel: str, query: str = "") -> list[str]:
    answer = api.get(f"/channels/{channel}/messages{query}")
    assert answer.status_code == 200, answer.content
    return [row["id"] for row in answer.json()["items"]]


def test_each_filter_of_the_list_restricts(reader: Api) -> None:
    consumer = ConsumerFactory.create()
    slug = consumer.channel.slug
    now = clock.now()
    (old,) = make_messages(consumer, 1, accepted_at=now - timedelta(days=2))
    (paid,) = make_messages(consumer, 1, event_type="order.paid")
    (made,) = make_messages(consumer, 1, event_type="order.created", state="accepted")
    (gone,) = make_messages(consumer, 1, event_type="orders.x", state="cancelled")
    (later,) = make_messages(consumer, 1, due_at=now + timedelta(hours=1))
    for waits in (paid, later):
        DeliveryFactory.create(message=waits, consumer=consumer)
    yesterday = quote(times.text(now - timedelta(days=1)))

    assert listed(reader, slug, "?event_type=order.paid") == [public(paid)]
    assert listed(reader, slug, "?event_type=order.*") == [public(made), public(paid)]
    assert listed(reader, slug, "?state=accepted") == [public(made)]
    assert listed(reader, slug, "?state=Acknowledged") == [public(made)]
    assert listed(reader, slug, "?state=cancelled") == [public(gone)]
    assert listed(reader, slug, "?state=scheduled") == [public(later)]
    assert listed(reader, slug, f"?to={yesterday}") == [public(old)]
    assert len(listed(reader, slug, f"?from={yesterday}")) == 4
    assert listed(reader, slug, f"?from={yesterday}&state=Out-for-delivery&event_type=*") == [
        public(later),
        public(paid),
    ]


def test_a_producer_finds_its_message_by_its_idempotency_key() -> None:
    channel = ChannelFactory.create()
    path, query = f"/channels/{channel.slug}/messages", "?idempotency_key=order-17"
    mine, theirs = (Api(scopes=["publish", "read"]) for _ in range(2))
    for key in ("order-17", "order-18"):
        mine.post(path, {"key": key}, Idempotency_Key=key)
    first, found = listed(mine, channel.slug)[-1], listed(mine, channel.slug, query)

    assert found == [first]
    assert listed(mine, channel.slug, f"{query}&state=cancelled") == []
    assert listed(mine, channel.slug, "?idempotency_key=order-1") == []
    assert listed(theirs, channel.slug, query) == []
    IdempotencyRecord.objects.update(expires_at=clock.now())
    assert listed(mine, channel.slug, query) == []


def test_a_filter_that_cannot_be_used_is_refused(reader: Api) -> None:
    path = f"/channels/{ChannelFactory.create().slug}/messages"
    for query in (
        *("colour=red", "state=delivered", "state=", "event_type=a..b", "event_type=%00"),
        *("from=yesterday", "from=0001-01-01T00:00:00Z", "to=99999999999999999999"),
        *("to=9999-12-31T23:59:59Z", "limit=201", "cursor=abc"),
        "to=2026-01-01T00:00:00Z&from=2026-01-01T00:00:00Z",
    ):
        wrong = (422, "invalid_parameter", query.partition("=")[0])
        assert problem(reader.get(f"{path}?{query}")) == wrong, query
