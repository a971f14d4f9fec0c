"""Schedules through the API: registered like other configuration, with their next occurrences."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from channels_app.core import times
from channels_app.models import AuditEntry, Channel, Schedule, ScheduleBody
from tests.support.api import Api
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    EventTypeFactory,
    ProducerFactory,
    TeamFactory,
)

URL = "channels/orders/schedules/daily"
NINE = {"cron": "0 9 * * 1-5", "timezone": "Europe/Paris", "body": '{"report": "daily"}'}


@pytest.fixture(autouse=True)
def _channel(db: None) -> None:
    ChannelFactory.create(slug="orders", external=True)


CONTENT = ("body", "body_base64", "headers")
"""Fields with the message's content, which lists leave out."""


@pytest.fixture
def publisher() -> Api:
    """A client with a producer's key that may publish."""
    return Api(ApiKeyFactory.create(scopes=["publish"]))


@pytest.mark.seed("S4-06")
def test_a_schedule_shows_its_next_occurrences(publisher: Api) -> None:
    publisher.put(URL, NINE)
    shown = publisher.get(URL).json
    assert (shown["body"], shown["body_base64"], shown["body_bytes"]) == (NINE["body"], None, 19)
    assert shown["words"] == "At 09:00 on Monday through Friday, Europe/Paris"
    assert (shown["state"], shown["last"], shown["recent"]) == ("active", None, [])
    assert len(shown["next"]) == 5
    stored = Schedule.objects.get()
    assert stored.next_at is not None
    assert shown["next"][0] == times.text(stored.next_at)
    (item,) = publisher.get("channels/orders/schedules").json["items"]
    assert item == {name: shown[name] for name in shown if name not in CONTENT}
    assert len(publisher.put(URL, NINE | {"limit": 3}).json["next"]) == 3
    actions = AuditEntry.objects.order_by("id").values_list("action", flat=True)
    assert list(actions) == ["schedule.create", "schedule.open", "schedule.update"]
    assert not AuditEntry.objects.filter(after__icontains="report").exists()


@pytest.mark.seed("S4-06")
def test_a_change_leaves_the_rest_as_it_is(publisher: Api) -> None:
    start = "2090-01-01T00:00:00.0005Z"
    every = {"every_ms": 1000, "start_at": start, "body_base64": "/wA=", "headers": {"X-A": "1"}}
    made = publisher.put(URL, every | {"event_type": "tick", "priority": 7, "limit": 9})
    before = Schedule.objects.get()
    changed = publisher.patch(URL, {"limit": None})
    moving = {name: changed.json[name] for name in ("version", "updated_at")}
    assert changed.json == made.json | {"limit": None} | moving
    after = Schedule.objects.get()
    assert (after.start_at, after.next_at) == (before.start_at, before.next_at)


@pytest.mark.seed("S4-06")
def test_a_new_schedule_time_or_body_replaces_the_old_one(publisher: Api) -> None:
    publisher.put(URL, {"every_ms": 1000, "body_base64": "/wA="})
    publisher.post(f"{URL}/pause")
    shown = publisher.patch(URL, {"cron": "0 9 * * *", "body": "x"}).json
    assert (shown["cron"], shown["every_ms"], shown["body"]) == ("0 9 * * *", None, "x")
    assert shown["state"] == "paused"
    shown = publisher.patch(URL, {"every_ms": 500, "cron": None}).json
    assert (shown["cron"], shown["every_ms"], shown["body"]) == (None, 500, "x")
    publisher.post(f"{URL}/resume")
    planned = Schedule.objects.get().next_at
    assert publisher.patch(URL, {"every_ms": 60_000}).status == 200
    assert Schedule.objects.get().next_at != planned


def test_an_unreadable_schedule_body_must_be_replaced(publisher: Api) -> None:
    publisher.put(URL, NINE)
    ScheduleBody.objects.update(data=b"broken")
    assert publisher.patch(URL, {"limit": 1}).json["code"] == "body_unreadable"
    assert publisher.patch(URL, {"limit": 1, "body": "x"}).json["body"] == "x"


@pytest.mark.seed("S4-06")
def test_pause_and_resume(publisher: Api) -> None:
    publisher.put(URL, NINE)
    paused = publisher.post(f"{URL}/pause")
    assert (paused.status, paused.json["state"], paused.json["next"]) == (200, "paused", [])
    assert Schedule.objects.get().next_at is None
    assert publisher.post(f"{URL}/pause").etag == paused.etag
    # A service that registers again at its start does not resume the schedule.
    assert publisher.put(URL, NINE | {"limit": 9}).json["state"] == "paused"
    assert publisher.post(f"{URL}/resume", If_Match=paused.etag).status == 412
    resumed = publisher.post(f"{URL}/resume")
    assert (resumed.json["state"], len(resumed.json["next"])) == ("active", 5)
    for path in ("pause", "resume", "run"):
        assert publisher.post(f"channels/orders/schedules/other/{path}").status == 404
    assert publisher.get("channels/orders/schedules?state=paused").json["items"] == []
    assert len(publisher.get("channels/orders/schedules?state=active").json["items"]) == 1
    assert publisher.get("channels/orders/schedules?state=asleep").status == 422


def test_the_body_is_sealed_at_rest(publisher: Api) -> None:
    publisher.put(URL, NINE)
    row = ScheduleBody.objects.get()
    assert b"report" not in bytes(row.data)
    assert row.key_id
    ChannelFactory.create(slug="open", external=True, encrypt_bodies=False)
    publisher.put("channels/open/schedules/daily", NINE)
    plain = ScheduleBody.objects.get(schedule__channel__slug="open")
    assert b"report" in bytes(plain.data)
    assert plain.key_id == row.key_id  # the key of the body's digest
    ScheduleBody.objects.update(data=bytes(plain.data).replace(b"report", b"REPORT"))
    answer = publisher.patch("channels/open/schedules/daily", {"limit": 1})
    assert answer.json["code"] == "body_unreadable"


def test_binary_bodies_and_the_start_time_round_trip(publisher: Api) -> None:
    start = "2090-01-01T00:00:00.500Z"
    body = {"every_ms": 500, "start_at": start, "body_base64": "/wA="}
    shown = publisher.put(URL, body).json
    assert (shown["body"], shown["body_base64"], shown["words"]) == (None, "/wA=", "Every 500 ms")
    assert shown["start_at"] == start
    assert shown["next"][:2] == [start, "2090-01-01T00:00:01.000Z"]
    assert publisher.put(URL, body).json["version"] == shown["version"]


def test_an_ended_schedule_can_be_registered_again(publisher: Api) -> None:
    """A service calls PUT at each start, even when its campaign is over."""
    past = times.text(datetime.now(UTC) - timedelta(days=1))
    shown = publisher.put(URL, NINE | {"end_at": past})
    assert (shown.status, shown.json["state"], shown.json["next"]) == (201, "ended", [])
    assert publisher.put(URL, NINE | {"end_at": past}).etag == shown.etag
    assert publisher.put(URL, NINE).json["state"] == "active"


def test_invalid_schedules_are_refused(publisher: Api) -> None:
    EventTypeFactory.create(
        channel=Channel.objects.get(),
        name="order.made",
        schema={"type": "object", "required": ["id"]},
    )
    late, early = "2027-01-02T00:00:00Z", "2027-01-01T00:00:00Z"
    changes: list[tuple[dict[str, Any], str]] = [
        ({"cron": "0 9 * * *", "every_ms": 1000}, "cron"),
        ({"start_at": late, "end_at": early}, "end_at"),
        ({"timezone": None}, "timezone"),
        # Refused by the rules for messages.
        ({"body": None}, "body"),
        ({"body": "x", "body_base64": "eA=="}, "body"),
        ({"event_type": "order.made"}, "body"),
        ({"content_type": "nothing"}, "content_type"),
    ]
    for method in ("PUT", "PATCH"):
        for change, field in changes:
            body = NINE | change if method == "PUT" else change
            answer = publisher.call(method, URL, body)
            status = 415 if field == "content_type" else 422
            assert (answer.status, answer.json["field"]) == (status, field), change
            assert answer.is_problem
        assert Schedule.objects.exists() == (method == "PATCH")
        publisher.put(URL, NINE)
    assert Schedule.objects.get().version == 1


def test_a_producer_cannot_exceed_its_priority_in_schedules() -> None:
    producer = ProducerFactory.create(max_priority=5)
    api = Api(ApiKeyFactory.create(producer=producer, scopes=["publish"]))
    answer = api.put(URL, NINE | {"priority": 6})
    assert (answer.status, answer.json["code"]) == (422, "priority_too_high")
    assert api.put(URL, NINE | {"priority": 5}).status == 201


def test_schedules_work_where_idempotency_keys_are_required(publisher: Api) -> None:
    ChannelFactory.create(slug="strict", external=True, require_idempotency_key=True)
    assert publisher.put("channels/strict/schedules/daily", NINE).status == 201


@pytest.mark.parametrize("whose", ["team", "installation"])
def test_a_schedule_does_not_exist_for_other_teams(whose: str) -> None:
    team = TeamFactory.create() if whose == "team" else None
    scopes = ["publish"] if team else ["admin"]
    owner = Api(ApiKeyFactory.create(team=team, producer=None, scopes=scopes))
    other = Api(ApiKeyFactory.create(team=TeamFactory.create(), scopes=["read", "publish"]))
    producer = Api(ApiKeyFactory.create(scopes=["publish"]))
    assert owner.put(URL, NINE).status == 201
    assert owner.get(URL).status == 200
    for stranger in (other, producer) if team else (other,):
        assert stranger.get(URL).status == 404
        assert stranger.get("channels/orders/schedules").json["items"] == []


def test_team_members_see_a_schedule_and_its_producer_changes_it() -> None:
    team = TeamFactory.create()
    mine, colleague = (
        Api(ApiKeyFactory.create(producer=producer, scopes=["publish"]))
        for producer in ProducerFactory.create_batch(2, team=team)
    )
    of_the_team = Api(ApiKeyFactory.create(team=team, scopes=["publish"]))
    assert mine.put(URL, NINE).status == 201
    assert colleague.get(URL).status == 200
    assert colleague.delete(URL).status == 404
    for method in ("PUT", "PATCH"):
        assert colleague.call(method, URL, NINE | {"limit": 1}).status == 404
    assert mine.patch(URL, {"limit": 1}).status == 200
    assert of_the_team.post(f"{URL}/pause").status == 200
    assert of_the_team.put("channels/orders/schedules/ours", NINE).status == 201
    assert Schedule.objects.get(name="ours").team == team
