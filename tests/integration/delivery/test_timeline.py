"""The timeline of a channel: listed in order, counted, moved and cancelled."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from channels_app import conf as conf_module
from channels_app.core import ids, times
from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer, Message
from channels_app.registry import snapshot
from delivery.api.views import timeline as views
from delivery.models import Delivery
from delivery.queue import cancel, timeline
from delivery.queue.timeline import TimelinePosition
from delivery.serializers import requests
from tests.support.calling import Api, problem
from tests.support.counts import (
    assert_counters_are_true,
    make_deliveries,
    make_messages,
    public,
)
from tests.support.factories import (
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    MessageFactory,
    ProducerFactory,
    TeamFactory,
)
from tests.support.principals import acting

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
ASKER = acting("test")


@pytest.fixture
def reader() -> Api:
    return Api(admin=True)


def later(consumer: Consumer, *delays_s: float) -> list[Message]:
    now = clock.now()
    return [
        make_messages(consumer, 1, due_at=now + timedelta(seconds=delay))[0] for delay in delays_s
    ]


def walk(api: Api, path: str) -> list[list[str]]:
    """Return the ids of every page."""
    pages, answer = [], api.get(path)
    while True:
        assert answer.status_code == 200, answer.content
        pages.append([row["id"] for row in answer.json()["items"]])
        if answer.json()["next"] is None:
            return pages
        place = path.partition("?")[0]
        answer = api.get(f"{place}?cursor={quote(answer.json()['next'])}")


# -- the list ----------------------------------------------------------------------------------


@pytest.mark.seed("S4-04")
def test_the_timeline_lists_messages_by_due_time(reader: Api) -> None:
    consumer = ConsumerFactory.create()
    path = f"/channels/{consumer.channel.slug}/timeline"
    third, first, past, second = later(consumer, 300, 100, -100, 200)
    later(ConsumerFactory.create(), 150)

    assert walk(reader, path) == [[public(first), public(second), public(third)]]
    assert walk(reader, f"{path}?limit=2") == [[public(first), public(second)], [public(third)]]
    begin = quote(times.text(second.due_at))
    assert walk(reader, f"{path}?from={begin}") == [[public(second), public(third)]]
    assert walk(reader, f"{path}?to={begin}") == [[public(first)]]
    assert walk(reader, f"{path}?from=2020-01-01T00:00:00Z")[0][0] == public(first)
    assert public(past) in [
        row["id"]
        for row in reader.get(f"/channels/{consumer.channel.slug}/messages").json()["items"]
    ]


def test_many_messages_due_at_one_time_are_paginated(reader: Api) -> None:
    consumer = ConsumerFactory.create()
    due_at = clock.now() + HOUR
    rows = make_messages(consumer, 7, due_at=due_at)
    (after,) = make_messages(consumer, 1, due_at=due_at + timedelta(microseconds=1))

    found = walk(reader, f"/channels/{consumer.channel.slug}/timeline?limit=3")

    assert [len(page) for page in found] == [3, 3, 2]
    assert [one for page in found for one in page] == [public(row) for row in (*rows, after)]


def test_channels_are_merged() -> None:
    one, other = ConsumerFactory.create(), ConsumerFactory.create()
    ours, theirs = later(one, 10, 30), later(other, 20, 40)
    now = clock.now()
    channels = [one.channel_id, other.channel_id]

    found = timeline.ahead(channels, now, now + HOUR, 3, None)
    assert [key for _, key in found] == [ours[0].id, theirs[0].id, ours[1].id]
    last = timeline.ahead(channels, now, now + HOUR, 3, found[-1])
    assert last == [TimelinePosition(theirs[1].due_at, theirs[1].id)]


def test_cancelled_and_moved_messages_change_the_timeline(reader: Api) -> None:
    consumer = ConsumerFactory.create()
    fanned_out, kept = later(consumer, 100, 200)
    waiting = MessageFactory.create(channel=consumer.channel, due_at=clock.now() + HOUR)
    path = f"/channels/{consumer.channel.slug}/timeline"

    for message in (fanned_out, waiting):
        assert cancel.cancel_message(message.id, ASKER, now=clock.now()).cancelled_count == 0
    assert walk(reader, path) == [[public(kept)]]
    gone = Message.objects.get(id=fanned_out.id)
    assert gone.due_at <= clock.now()
    entry = AuditEntry.objects.order_by("id").first()
    assert entry is not None
    assert entry.before is not None
    assert entry.before["due_at"] == times.text(fanned_out.due_at)


def test_a_timeline_shows_own_messages_and_bounds_its_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "SCAN_ROWS", 4)
    team = TeamFactory.create()
    producer = ProducerFactory.create(team=team)
    channel = ChannelFactory.create(external=True)
    consumer = ConsumerFactory.create(channel=channel)
    now = clock.now()
    make_messages(consumer, 10, due_at=now + HOUR)
    (mine,) = make_messages(consumer, 1, due_at=now + 2 * HOUR, producer_id=producer.id)
    path = f"/channels/{channel.slug}/timeline"
    api = Api(producer=producer, scopes=["read"])

    found = walk(api, path)

    assert [len(page) for page in found] == [0, 0, 1]
    assert found[-1] == [public(mine)]
    counted = api.get(f"{path}/histogram?width_s=3600&to={quote(times.text(now + 3 * HOUR))}")
    assert counted.json()["count"] == 1


# -- the histogram -----------------------------------------------------------------------------


@pytest.mark.seed("S4-41", "S4-R9")
@pytest.mark.parametrize("everything", [True, False])
def test_the_near_future_is_counted(everything: bool) -> None:
    api = Api(admin=True) if everything else Api(scopes=["read"])
    consumer = ConsumerFactory.create()
    begins = clock.now().replace(second=0, microsecond=0) + timedelta(minutes=10)
    for seconds, number in ((0, 3), (59.999999, 1), (60, 2), (150, 5), (600, 7)):
        make_messages(consumer, number, due_at=begins + timedelta(seconds=seconds))
    path = f"/channels/{consumer.channel.slug}/timeline/histogram"
    span = f"from={quote(times.text(begins))}&to={quote(times.text(begins + 3 * MINUTE))}"

    body = api.get(f"{path}?{span}").json()

    assert [bucket["count"] for bucket in body["buckets"]] == [4, 2, 5]
    assert [bucket["from"] for bucket in body["buckets"]] == [
        times.text(begins + place * MINUTE) for place in range(3)
    ]
    assert (body["count"], body["complete"], body["width_s"]) == (11, True, 60)
    whole = api.get(path).json()
    assert (len(whole["buckets"]) in (60, 61), whole["count"]) == (True, 18)


MINUTE = timedelta(minutes=1)


def test_the_timeline_count_is_bounded(monkeypatch: pytest.MonkeyPatch, reader: Api) -> None:
    monkeypatch.setattr(timeline, "MAX_COUNTED", 5)
    monkeypatch.setattr(views, "MAX_OWN", 5)
    consumer = ConsumerFactory.create()
    later(consumer, *range(100, 110))
    path = f"/channels/{consumer.channel.slug}/timeline/histogram"

    for api in (reader, Api(scopes=["read"])):
        body = api.get(path).json()
        assert (body["count"], body["complete"]) == (5, False)


def test_upcoming_messages_are_counted_by_time_until_due() -> None:
    consumer = ConsumerFactory.create()
    now = clock.now()
    for delay, number in ((30, 2), (200, 3), (4000, 4), (90_000, 5)):
        make_messages(consumer, number, due_at=now + timedelta(seconds=delay))
    spans = [MINUTE, 5 * MINUTE, HOUR, 24 * HOUR]

    assert timeline.upcoming([consumer.channel_id], now, spans) == [2, 5, 5, 9]
    assert timeline.upcoming([], now, spans) == [0, 0, 0, 0]


def test_invalid_timeline_requests_are_refused(reader: Api) -> None:
    channel = ChannelFactory.create()
    for path, field in (
        ("timeline?colour=red", "colour"),
        ("timeline?from=soon", "from"),
        ("timeline?cursor=abc", "cursor"),
        *((f"timeline/histogram?width_s={value}", "width_s") for value in ("0", "1.5", "86401")),
        ("timeline/histogram?width_s=1&to=2099-01-01T00:00:00Z", "width_s"),
    ):
        answer = reader.get(f"/channels/{channel.slug}/{path}")
        assert problem(answer) == (422, "invalid_parameter", field), path


# -- moving and cancelling ---------------------------------------------------------------------


@pytest.fixture
def owner() -> Api:
    return Api(scopes=["publish", "read"])


def own(api: Api, **traits: Any) -> Delivery:
    assert api.key is not None
    return DeliveryFactory.create(message__producer=api.key.producer, **traits)


def test_a_cancellation_spares_deliveries_in_flight(owner: Api) -> None:
    row = own(owner, in_flight=True)
    other = ConsumerFactory.create(channel=row.channel)
    DeliveryFactory.create(message=row.message, consumer=other)

    answer = owner.delete(f"/messages/{public(row.message)}")

    assert answer.json()["cancelled_count"] == 1
    assert_counters_are_true()


def test_a_move_may_count_from_now(owner: Api) -> None:
    row = own(owner)
    before = clock.now()

    body = owner.patch(f"/messages/{public(row.message)}", {"delay_ms": 60_000}).json()

    moved = times.instant(body["due_at"])
    assert before + MINUTE <= moved + timedelta(milliseconds=1)
    assert moved <= clock.now() + MINUTE + timedelta(milliseconds=1)
    both = {"delay_ms": 5, "due_at": "2026-01-01T00:00:00Z"}
    answer = owner.patch(f"/messages/{public(row.message)}", both)
    assert problem(answer) == (422, "invalid_fields", "delay_ms")


@pytest.mark.seed("S4-14", "S4-11")
def test_of_two_moves_for_one_version_one_is_stale(owner: Api) -> None:
    row = own(owner)
    path = f"/messages/{public(row.message)}"
    tag = owner.get(path).headers["ETag"]

    first = owner.patch(path, {"delay_ms": 5000}, if_match=tag)
    second = owner.patch(path, {"delay_ms": 9000}, if_match=tag)

    assert first.status_code == 200
    assert problem(second)[:2] == (412, "stale_version")
    assert owner.get(path).json()["due_at"] == first.json()["due_at"]
    assert problem(owner.patch(path, {"body": "other"})) == (422, "invalid_fields", "body")


def test_many_are_moved_each_by_itself(owner: Api) -> None:
    rows = [own(owner) for _ in range(3)]
    held = own(owner, in_flight=True)
    foreign = DeliveryFactory.create()
    at = clock.now() + HOUR
    names = [public(row.message) for row in (*rows, held, foreign)]

    answer = owner.post(
        "/messages/move",
        {
            "messages": [
                {"id": names[0], "due_at": times.text(at), "version": 1},
                {"id": names[1], "delay_ms": 5000, "priority": 9},
                {"id": names[2], "priority": 5, "version": 7},
                {"id": names[3], "priority": 5},
                {"id": names[4], "priority": 5},
                {"id": "msg_\ud800", "priority": 5},
                {"id": names[0]},
                "nonsense",
            ],
            "reason": "later",
        },
    )

    assert answer.status_code == 207
    body = answer.json()
    assert (body["done"], body["refused"]) == (2, 6)
    shown = [(item["id"], item["status"], item.get("code", "")) for item in body["items"]]
    assert shown == [
        (names[0], 200, ""),
        (names[1], 200, ""),
        (names[2], 412, "stale_version"),
        (names[3], 409, "in_flight"),
        (names[4], 403, "not_the_producer"),
        ("msg_\\ud800", 422, "invalid_fields"),
        (names[0], 422, "invalid_fields"),
        (None, 422, "invalid_fields"),
    ]
    assert body["items"][0]["version"] == 2
    first = Delivery.objects.get(id=rows[0].id)
    assert first.due_at is not None
    assert times.text(first.due_at) == times.text(at)
    assert Delivery.objects.get(id=rows[1].id).priority == 9
    assert {entry.reason for entry in AuditEntry.objects.all()} == {"later"}


@pytest.mark.seed("S4-21")
def test_many_are_cancelled_each_by_itself(owner: Api) -> None:
    rows = [own(owner) for _ in range(3)]
    held = own(owner, in_flight=True)
    items: list[dict[str, Any]] = [{"id": public(row.message)} for row in (*rows, held)]
    items[2]["version"] = 9

    body = owner.post("/messages/cancel", {"messages": items}).json()

    assert [item["status"] for item in body["items"]] == [200, 200, 412, 409]
    assert [item.get("cancelled_count") for item in body["items"][:2]] == [1, 1]
    states = Delivery.objects.order_by("id").values_list("state", flat=True)
    assert list(states) == ["cancelled", "cancelled", "queued", "in_flight"]
    assert_counters_are_true()


@pytest.mark.trap("statements per row")
def test_a_hundred_at_once_take_a_few_statements(owner: Api) -> None:
    """The statements take the time: 2,400 for 200 messages took seconds."""
    consumer, at = ConsumerFactory.create(), clock.now() + HOUR
    queued = {"state": "queued", "reason": "accepted", "due_at": at, "finished_at": None}
    rows = make_deliveries(consumer, 100, **queued)
    assert owner.key is not None
    Message.objects.update(producer=owner.key.producer)
    names = [ids.to_public(ids.MESSAGE, row.message_id) for row in rows]
    places = [
        {"due_at": times.text(at + timedelta(seconds=number)), "priority": number % 9}
        for number in range(len(rows))
    ]

    def change(path: str, items: list[dict[str, Any]]) -> dict[int, Delivery]:
        with CaptureQueriesContext(connection) as captured:
            assert owner.post(path, {"messages": items}).json()["done"] == len(rows)
        assert len(captured) < 30
        return {row.id: row for row in Delivery.objects.select_related("message")}

    items = [{"id": name} | place for name, place in zip(names, places, strict=True)]
    after = change("/messages/move", items)
    for row, place in zip(rows, places, strict=True):
        for one in (after[row.id], after[row.id].message):
            assert one.due_at is not None
            assert times.text(one.due_at) == place["due_at"]
            assert (one.priority, one.version) == (place["priority"], 2)

    after = change("/messages/cancel", [{"id": name} for name in names])
    assert {(row.state, row.version) for row in after.values()} == {("cancelled", 3)}
    assert AuditEntry.objects.count() == 2 * len(rows)
    assert_counters_are_true()


def test_a_message_listed_twice_is_changed_twice(owner: Api) -> None:
    name = public(own(owner).message)
    at = clock.now() + HOUR
    items = [
        {"id": name, "priority": 9, "version": 1},
        {"id": name, "due_at": times.text(at), "version": 2},
        {"id": name, "priority": 1, "version": 1},
    ]

    body = owner.post("/messages/move", {"messages": items}).json()

    assert [item["status"] for item in body["items"]] == [200, 200, 412]
    row = Delivery.objects.get()
    assert row.due_at is not None
    assert (row.priority, times.text(row.due_at)) == (9, times.text(at))


def test_a_malformed_list_of_messages_is_refused(owner: Api) -> None:
    bodies: list[tuple[dict[str, Any], str, str]] = [
        ({}, "invalid_fields", "messages"),
        ({"messages": "all"}, "invalid_fields", "messages"),
        ({"messages": [{}] * 201}, "batch_too_large", "messages"),
        ({"messages": [], "colour": 1}, "invalid_fields", "colour"),
    ]
    for path in ("/messages/move", "/messages/cancel"):
        for body, code, field in bodies:
            assert problem(owner.post(path, body)) == (422, code, field)


# -- publishing with a due time ----------------------------------------------------------------


@pytest.mark.seed("S4-40")
def test_messages_due_at_one_time_can_be_spread() -> None:
    channel = ChannelFactory.create()
    api = Api(scopes=["publish"])
    at = clock.now() + HOUR
    item = {"body": "x", "deliver_at": times.text(at), "spread_ms": 60_000}

    body = api.post(f"/channels/{channel.slug}/messages/batch", [item] * 50).json()

    due = [times.instant(stored["due_at"]) for stored in body["items"]]
    floor = times.instant(times.text(at))
    assert all(floor <= instant <= floor + MINUTE for instant in due)
    assert len(set(due)) > 40
    assert max(due) - min(due) > MINUTE / 3


def test_a_spread_message_must_not_expire_before_it_is_due() -> None:
    channel = ChannelFactory.create()
    api = Api(scopes=["publish"])
    headers = {
        "hookstation_delay": "1000",
        "hookstation_spread": "60000",
        "hookstation_expires_at": times.text(clock.now() + timedelta(seconds=30)),
    }

    answer = api.post(f"/channels/{channel.slug}/messages", {}, **headers)
    assert problem(answer) == (422, "invalid_fields", "Hookstation-Expires-At")
    headers["hookstation_spread"] = "1000"
    assert api.post(f"/channels/{channel.slug}/messages", {}, **headers).status_code == 202


def test_a_due_time_beyond_the_limit_is_refused(
    owner: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(conf_module.conf(), max_future_days=2)
    for module in (snapshot, requests):
        monkeypatch.setattr(module, "conf", lambda: short)
    channel = ChannelFactory.create()
    path = f"/channels/{channel.slug}/messages"
    far = times.text(clock.now() + timedelta(days=2, minutes=1))

    answer = owner.post(path, {}, hookstation_deliver_at=far)
    assert problem(answer) == (422, "invalid_fields", "Hookstation-Deliver-At")
    assert "2 days" in answer.json()["detail"]
    answer = owner.post(path, {}, hookstation_delay="172800001")
    assert problem(answer) == (422, "invalid_fields", "Hookstation-Delay")
    assert owner.post(path, {}, hookstation_delay="172800000").status_code == 202
    row = own(owner)
    for field, value in (("due_at", far), ("delay_ms", 172_800_001)):
        answer = owner.patch(f"/messages/{public(row.message)}", {field: value})
        assert problem(answer) == (422, "invalid_fields", field)


@pytest.mark.seed("S4-R6")
def test_a_channel_may_allow_less(owner: Api, reader: Api) -> None:
    channel = ChannelFactory.create()
    shown = reader.patch(f"/channels/{channel.slug}", {"max_future_days": 2}).json()
    assert (shown["max_future_days"], shown["effective"]["max_future_days"]) == (2, 2)
    path = f"/channels/{channel.slug}/messages"
    far = times.text(clock.now() + timedelta(days=2, minutes=1))

    refused = owner.post(path, {}, hookstation_deliver_at=far)
    assert problem(refused) == (422, "invalid_fields", "Hookstation-Deliver-At")
    assert owner.post(path, {}, hookstation_delay="172800000").status_code == 202
    assert owner.post(path, {}, hookstation_delay="172800001").status_code == 422
    row = own(owner, consumer=ConsumerFactory.create(channel=channel))
    place = f"/messages/{public(row.message)}"
    for move in ({"due_at": far}, {"delay_ms": 172_800_001}):
        refused = owner.patch(place, move)
        assert problem(refused) == (422, "invalid_fields", "due_at")
        assert "2 days" in refused.json()["detail"]
    assert owner.patch(place, {"delay_ms": 172_800_000}).status_code == 200
    assert (
        owner.post(
            f"/channels/{ChannelFactory.create().slug}/messages", {}, hookstation_deliver_at=far
        ).status_code
        == 202
    )
