"""Messages over HTTP: reading, exact bodies, moving, cancelling, and permissions."""

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest

from channels_app.core import ids, times
from channels_app.database import clock
from channels_app.models import AuditEntry, IdempotencyRecord, Message, MessageBody, new_id
from delivery.api import pages
from delivery.models import Delivery
from tests.support.calling import Api, problem
from tests.support.counts import assert_counters_are_true, key_at, make_messages, public
from tests.support.factories import (
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    MessageFactory,
    ProducerFactory,
    TeamFactory,
)

pytestmark = pytest.mark.django_db
MALFORMED = ["msg_1", "dlv_0000000000000", "msg_zzzzzzzzzzzzz", "msg_000000000000O", "%00", "5"]


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

    assert answer.status_code == 200
    assert answer.headers["ETag"] == '"1"'
    body = answer.json()
    assert (body["id"], body["state"], body["scheduled"]) == (
        public(message),
        "Out-for-delivery",
        False,
    )
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
    assert (shown["attempt_count"], shown["outcome"], shown["status_code"]) == (
        1,
        "server_error",
        500,
    )


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


def test_a_message_without_matching_consumers_is_finished(reader: Api) -> None:
    message = MessageFactory.create(dispatched=True, due_at=clock.now() + timedelta(hours=1))

    body = reader.get(f"/messages/{public(message)}").json()

    assert (body["state"], body["scheduled"]) == ("Finished", False)
    assert listed(reader, message.channel.slug, "?state=scheduled") == []


def test_a_scheduled_message_is_shown_as_scheduled(reader: Api) -> None:
    message = MessageFactory.create(scheduled=True)

    body = reader.get(f"/messages/{public(message)}").json()

    assert (body["state"], body["scheduled"], body["deliveries"]) == ("Acknowledged", True, [])


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_id_is_not_found(reader: Api, text: str) -> None:
    for path in (f"/messages/{text}", f"/messages/{text}/body"):
        assert problem(reader.get(path)) == (404, "unknown_message", "")


def test_an_unknown_message_is_not_found(reader: Api) -> None:
    text = ids.to_public("msg", new_id())

    assert problem(reader.get(f"/messages/{text}")) == (404, "unknown_message", "")


@pytest.mark.parametrize(
    ("method", "path", "scopes"),
    [
        ("GET", "/messages/{}", ["publish", "register", "receive", "replay"]),
        ("GET", "/messages/{}/body", ["publish", "register", "replay"]),
        ("PATCH", "/messages/{}", ["read", "register", "receive", "replay"]),
        ("DELETE", "/messages/{}", ["read", "register", "receive", "replay"]),
    ],
)
def test_a_key_needs_the_scope(method: str, path: str, scopes: list[str]) -> None:
    address = path.format(public(MessageFactory.create()))

    assert problem(Api(scopes=scopes).call(method, address))[:2] == (403, "missing_scope")
    assert problem(Api().call(method, address))[0] == 401
    assert problem(Api(scopes=["admin"], revoked=True).call(method, address))[0] == 401


def test_the_list_needs_read_and_the_channels_grant() -> None:
    channel = ChannelFactory.create()
    path = f"/channels/{channel.slug}/messages"

    assert problem(Api(scopes=["publish"]).get(path))[:2] == (403, "missing_scope")
    assert problem(Api(scopes=["read"], channels=["other"]).get(path))[:2] == (403, "no_grant")
    assert problem(Api().get(path))[0] == 401
    assert Api(scopes=["read"], channels=[channel.slug]).get(path).status_code == 200


# -- isolation of teams ------------------------------------------------------------------------


def test_a_channel_that_was_not_granted_hides_its_messages() -> None:
    message = MessageFactory.create()
    granted = Api(scopes=["read", "publish"], channels=[message.channel.slug])
    other = Api(scopes=["read", "publish"], channels=["other"])
    path = f"/messages/{public(message)}"

    assert granted.get(path).status_code == 200
    for method in ("GET", "PATCH", "DELETE"):
        assert problem(other.call(method, path)) == (404, "unknown_message", "")
    assert problem(other.get(f"{path}/body")) == (404, "unknown_message", "")


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


def test_only_its_producer_changes_a_message() -> None:
    producer = ProducerFactory.create()
    message = MessageFactory.create(producer=producer)
    path = f"/messages/{public(message)}"
    stranger = Api(scopes=["publish", "read"])

    assert problem(stranger.patch(path, {"priority": 1}))[:2] == (403, "not_the_producer")
    assert problem(stranger.delete(path))[:2] == (403, "not_the_producer")
    assert (
        Api(producer=producer, scopes=["publish"]).patch(path, {"priority": 1}).status_code == 200
    )
    assert Api(admin=True).delete(path).status_code == 200


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


def test_due_time_can_be_unix_milliseconds(owner: Api) -> None:
    row = own_delivery(owner)
    at = int((clock.now().timestamp() + 60) * 1000)

    body = owner.patch(f"/messages/{public(row.message)}", {"due_at": at}).json()

    assert times.instant(body["due_at"]).timestamp() * 1000 == at


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, ""),
        ({"reason": "just so"}, ""),
        ({"priority": 10}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": "5"}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 5.5}, "priority"),
        ({"priority": None}, "priority"),
        ({"due_at": "soon"}, "due_at"),
        ({"due_at": None}, "due_at"),
        ({"due_at": []}, "due_at"),
        ({"due_at": "2026-13-01T00:00:00Z"}, "due_at"),
        ({"due_at": "9999-12-31T23:59:59.9Z"}, "due_at"),
        ({"priority": 5, "reason": "x" * 501}, "reason"),
        ({"priority": 5, "reason": 5}, "reason"),
        ({"priority": 5, "reason": "\x00"}, "reason"),
        ({"priority": 5, "colour": "red"}, "colour"),
        ({"priority": 5, "\ud800": 1}, "\\ud800"),
    ],
)
def test_an_invalid_move_is_refused(owner: Api, body: dict[str, Any], field: str) -> None:
    row = own_delivery(owner)

    answer = owner.patch(f"/messages/{public(row.message)}", body)

    assert problem(answer) == (422, "invalid_fields", field)
    assert Message.objects.get().version == 1


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "malformed_body"),
        (b"[]", 400, "malformed_body"),
        (b"\xff", 400, "malformed_body"),
        (b'{"priority": NaN}', 400, "malformed_body"),
        (b"[" * 100_000, 400, "malformed_body"),
        (b'{"reason": "' + b"x" * 1024 * 1024 + b'"}', 413, "body_too_large"),
    ],
)
def test_a_body_that_is_not_a_json_object_is_refused(
    owner: Api, body: bytes, status: int, code: str
) -> None:
    row = own_delivery(owner)

    assert problem(owner.patch(f"/messages/{public(row.message)}", body))[:2] == (status, code)


def test_a_move_needs_json(owner: Api) -> None:
    row = own_delivery(owner)

    answer = owner.call("PATCH", f"/messages/{public(row.message)}")

    assert problem(answer)[:2] == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("traits", "code"), [({"in_flight": True}, "in_flight"), ({"dead": True}, "nothing_waits")]
)
def test_a_finished_message_is_not_moved(owner: Api, traits: dict[str, bool], code: str) -> None:
    row = own_delivery(owner, **traits)

    assert problem(owner.patch(f"/messages/{public(row.message)}", {"priority": 5})) == (
        409,
        code,
        "",
    )


def test_a_move_stays_below_the_producers_highest_priority(owner: Api) -> None:
    row = own_delivery(owner)
    assert row.message.producer is not None
    row.message.producer.max_priority = 5
    row.message.producer.save()

    assert problem(owner.patch(f"/messages/{public(row.message)}", {"priority": 6})) == (
        422,
        "priority_too_high",
        "priority",
    )


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


def test_a_message_before_fan_out_can_be_cancelled(owner: Api) -> None:
    assert owner.key is not None
    message = MessageFactory.create(producer=owner.key.producer)

    assert owner.delete(f"/messages/{public(message)}").json()["state"] == "Cancelled"
    assert problem(owner.patch(f"/messages/{public(message)}", {"priority": 1})) == (
        409,
        "message_cancelled",
        "",
    )


@pytest.mark.parametrize("query", ["reason=" + "x" * 501, "reason=%00", "why=so"])
def test_the_reason_of_a_cancellation_is_checked(owner: Api, query: str) -> None:
    row = own_delivery(owner)

    answer = owner.delete(f"/messages/{public(row.message)}?{query}")

    assert problem(answer) == (422, "invalid_parameter", query.partition("=")[0])
    assert Delivery.objects.get().state == "queued"


# -- the list ----------------------------------------------------------------------------------


def listed(api: Api, channel: str, query: str = "") -> list[str]:
    answer = api.get(f"/channels/{channel}/messages{query}")
    assert answer.status_code == 200, answer.content
    return [row["id"] for row in answer.json()["items"]]


def test_the_list_goes_newest_first_page_by_page_and_back(reader: Api) -> None:
    channel = ChannelFactory.create()
    rows = [MessageFactory.create(channel=channel) for _ in range(5)]
    MessageFactory.create()
    newest_first = [public(row) for row in reversed(rows)]
    path = f"/channels/{channel.slug}/messages"

    first = reader.get(f"{path}?limit=2").json()
    second = reader.get(f"{path}?cursor={quote(first['next'])}").json()
    third = reader.get(f"{path}?cursor={quote(second['next'])}").json()
    back = reader.get(f"{path}?cursor={quote(second['previous'])}").json()

    found = [[row["id"] for row in page["items"]] for page in (first, second, third, back)]
    assert found == [newest_first[:2], newest_first[2:4], newest_first[4:], newest_first[:2]]
    assert third["next"] is None


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


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("colour=red", "colour"),
        ("state=delivered", "state"),
        ("state=", "state"),
        ("event_type=a..b", "event_type"),
        ("event_type=" + "a" * 501, "event_type"),
        ("event_type=%00", "event_type"),
        ("from=yesterday", "from"),
        ("from=0001-01-01T00:00:00Z", "from"),
        ("to=99999999999999999999", "to"),
        ("to=9999-12-31T23:59:59Z", "to"),
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=two", "limit"),
        ("cursor=abc", "cursor"),
    ],
)
def test_a_filter_that_cannot_be_used_is_refused(reader: Api, query: str, field: str) -> None:
    channel = ChannelFactory.create()

    answer = reader.get(f"/channels/{channel.slug}/messages?{query}")

    assert problem(answer) == (422, "invalid_parameter", field)


def test_an_unknown_channel_has_no_list(reader: Api) -> None:
    assert problem(reader.get("/channels/nowhere/messages")) == (404, "unknown_channel", "")


def test_publishing_still_works_at_the_lists_address() -> None:
    channel = ChannelFactory.create()
    api = Api(scopes=["publish", "read"])

    answer = api.post(f"/channels/{channel.slug}/messages", {"id": 1})

    assert answer.status_code == 202
    assert listed(api, channel.slug) == [answer.json()["id"]]
    assert api.get(f"/messages/{answer.json()['id']}/body").json() == {"id": 1}


def test_a_rare_filter_scans_a_bounded_range(reader: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SCAN_ROWS", (10, 10))
    consumer = ConsumerFactory.create()
    path = f"/channels/{consumer.channel.slug}/messages"
    at = clock.now() - timedelta(hours=1)
    wanted = [
        MessageFactory.create(
            channel=consumer.channel, id=key_at(at), accepted_at=at, event_type="a.b"
        )
    ]
    make_messages(consumer, 50)
    wanted += make_messages(consumer, 1, event_type="a.b")
    make_messages(consumer, 5)

    forward, sizes = [], []
    page = reader.get(f"{path}?event_type=a.b&limit=5").json()
    while True:
        sizes.append(len(page["items"]))
        forward += [row["id"] for row in page["items"]]
        if page["next"] is None:
            break
        last = page
        page = reader.get(f"{path}?cursor={quote(page['next'])}").json()
    assert forward == [public(wanted[1]), public(wanted[0])]
    assert sizes == [1, 0, 1]

    backward: list[str] = []
    page = reader.get(f"{path}?cursor={quote(last['next'])}").json()
    while page["previous"] is not None:
        page = reader.get(f"{path}?cursor={quote(page['previous'])}").json()
        backward += [row["id"] for row in page["items"]]
    assert backward == [public(wanted[1])]
    again = reader.get(f"{path}?cursor={quote(page['next'])}").json()
    assert public(wanted[0]) in [row["id"] for row in again["items"]] or again["next"]
