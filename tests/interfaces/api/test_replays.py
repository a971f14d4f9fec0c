"""Replays and backfills over HTTP: dry runs, progress, cancellation, isolation and validation."""

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest

from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer, new_id
from delivery import replay
from delivery.models import Delivery, Replay
from tests.support.calling import Api, problem
from tests.support.counts import assert_counters_are_true, make_deliveries, make_messages, public
from tests.support.factories import ChannelFactory, ConsumerFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def api() -> Api:
    return Api(scopes=["replay"])


def of(consumer: Consumer, **more: Any) -> dict[str, Any]:
    return {"channel": consumer.channel.slug, "consumer": consumer.client_id, **more}


def at(consumer: Consumer) -> str:
    return f"/channels/{consumer.channel.slug}/consumers/{consumer.client_id}/backfill"


# -- requests ----------------------------------------------------------------------------------


def test_a_dry_run_counts_and_changes_nothing(api: Api) -> None:
    consumer = ConsumerFactory.create()
    rows = make_deliveries(consumer, 12, outcome="timeout")
    make_deliveries(consumer, 3)
    make_deliveries(consumer, 2, state="delivered", outcome="delivered")

    answer = api.post("/replays", {"filter": of(consumer, outcomes=["timeout"]), "dry_run": True})

    body = answer.json()
    assert answer.status_code == 200
    assert (body["dry_run"], body["matched_count"], body["exact"]) == (True, 12, True)
    assert body["filter"] == of(consumer, states=["dead"], outcomes=["timeout"])
    assert [row["id"] for row in body["sample"]] == [public(row) for row in rows[:10]]
    assert {row["consumer"] for row in body["sample"]} == {consumer.client_id}
    assert not Replay.objects.exists()
    assert not AuditEntry.objects.exists()
    assert set(Delivery.objects.values_list("state", flat=True)) == {"dead", "delivered"}
    # States may be named as they are shown.
    wanted = {"filter": of(consumer, states=["Dead", "Delivered"]), "dry_run": True}
    assert api.post("/replays", wanted).json()["matched_count"] == 17


def test_a_replay_is_a_resource_with_progress(api: Api) -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 5)

    answer = api.post(
        "/replays", {"filter": of(consumer), "rate_per_second": 0.05, "reason": "outage"}
    )

    assert answer.status_code == 202
    body = answer.json()
    assert answer.headers["Location"] == body["url"]
    assert (body["kind"], body["state"], body["matched_count"]) == ("replay", "running", 5)
    assert (body["replayed_count"], body["rate_per_second"]) == (0, 0.05)
    assert api.key is not None
    assert (body["reason"], body["requested_by"]) == ("outage", f"key:{api.key.key_id}")
    path = f"/replays/{body['id']}"
    assert api.get(path).json() == body

    assert replay.run_due(clock.now(), 0) == 4  # as many as a minute allows
    shown = api.get(path)
    assert (shown.json()["replayed_count"], shown.headers["ETag"]) == (4, '"2"')
    assert api.get(path, if_none_match='"2"').status_code == 304
    replay.run_due(clock.now() + timedelta(minutes=2), 0)
    replay.run_due(clock.now() + timedelta(minutes=4), 0)
    done = api.get(path).json()
    assert (done["state"], done["replayed_count"]) == ("finished", 5)
    assert done["finished_at"] is not None
    assert_counters_are_true()


def test_a_replay_is_stopped(api: Api) -> None:
    consumer = ConsumerFactory.create()
    make_deliveries(consumer, 3)
    body = api.post("/replays", {"filter": of(consumer), "rate_per_second": 0.02}).json()
    replay.run_due(clock.now(), 0)

    answer = api.post(f"/replays/{body['id']}/cancel", {"reason": "wrong consumer"})

    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert answer.json()["replayed_count"] == 2
    assert AuditEntry.objects.filter(action="replay.cancel", reason="wrong consumer").exists()
    assert problem(api.post(f"/replays/{body['id']}/cancel")) == (409, "replay_ended", "")
    assert replay.run_due(clock.now() + timedelta(hours=1), 0) == 0


def test_an_invalid_replay_request_is_refused(api: Api) -> None:
    """The parts of a filter are tested where it is parsed."""
    ConsumerFactory.create(channel=ChannelFactory.create(slug="c"))
    good = {"filter": {"channel": "c"}}
    requests: list[tuple[dict[str, Any], str]] = [
        ({}, "filter"),
        *(({"filter": value}, "filter") for value in (None, "dead", list[str]())),
        ({"filter": {}}, "channel"),
        ({"filter": {"states": ["dead"]}}, "channel"),
        ({"filter": {"channel": "c", "states": ["queued"]}}, "filter.states"),
        ({"filter": {"channel": "c", "to": 10**30}}, "filter.to"),
        ({"filter": {"ids": ["dlv_1"]}}, "filter.ids"),
        ({"filter": {"channel": "c", "\ud800": 1}}, "filter.\\ud800"),
        (good | {"moon": 1}, "moon"),
        *((good | {"dry_run": value}, "dry_run") for value in ("yes", 1)),
        *((good | {"rate_per_second": it}, "rate_per_second") for it in (0, 1e9, "5", True)),
        *((good | {"reason": value}, "reason") for value in ("x" * 501, ["x"])),
    ]
    for body, field in requests:
        status, code, at_fault = problem(api.post("/replays", body))
        assert (status, at_fault) == (422, field), body
        assert code in {"invalid_fields", "invalid_filter"}
    assert not Replay.objects.exists()


def test_an_unknown_replay_is_not_found(api: Api) -> None:
    consumer = ConsumerFactory.create()
    for wanted in (
        {"channel": "nowhere"},
        {"channel": consumer.channel.slug, "consumer": "nobody"},
        {"channel": "nowhere", "consumer": consumer.client_id},
    ):
        assert problem(api.post("/replays", {"filter": wanted}))[0] == 404
    for text in ("rpl_1", "dlv_0000000000000", ids.to_public("rpl", new_id()), "%00"):
        assert problem(api.get(f"/replays/{text}")) == (404, "unknown_replay", "")
        assert problem(api.post(f"/replays/{text}/cancel")) == (404, "unknown_replay", "")
    gone = ConsumerFactory.create(retired=True)
    assert problem(api.post("/replays", {"filter": of(gone)})) == (409, "consumer_retired", "")
    assert problem(api.post(at(gone), {})) == (409, "consumer_retired", "")


def test_too_many_replays_at_a_time_are_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delivery.replay.requests.MAX_RUNNING", 2)
    wanted = {"filter": of(ConsumerFactory.create())}
    for _ in range(2):
        started = api.post("/replays", wanted)
        assert started.status_code == 202

    assert problem(api.post("/replays", wanted)) == (409, "too_many_replays", "")
    assert api.post("/replays", {**wanted, "dry_run": True}).status_code == 200
    assert api.post(f"/replays/{started.json()['id']}/cancel").status_code == 200
    assert api.post("/replays", wanted).status_code == 202


# -- the list ----------------------------------------------------------------------------------


def test_replays_are_listed_newest_first(api: Api) -> None:
    consumer = ConsumerFactory.create()
    made = [api.post("/replays", {"filter": of(consumer)}).json()["id"] for _ in range(3)]
    api.post(f"/replays/{made[1]}/cancel")

    def listed(query: str = "") -> list[str]:
        return [row["id"] for row in api.get(f"/replays{query}").json()["items"]]

    assert listed() == made[::-1]
    assert listed("?state=cancelled") == [made[1]]
    assert listed("?state=running&limit=1") == [made[2]]
    page = api.get("/replays?limit=2").json()
    assert listed(f"?cursor={quote(page['next'])}") == made[:1]
    for query in ("state=moon", "colour=red", "limit=0", "cursor=x"):
        assert problem(api.get(f"/replays?{query}"))[::2] == (422, query.partition("=")[0])


# -- backfill ----------------------------------------------------------------------------------


def test_a_backfill_dry_run_counts(api: Api) -> None:
    consumer = ConsumerFactory.create(event_types=["order.*"])
    paid = make_messages(consumer, 12, event_type="order.paid")
    make_messages(consumer, 1, event_type="user.made")

    looked = api.post(at(consumer), {"dry_run": True}).json()

    assert (looked["matched_count"], looked["exact"]) == (12, True)
    assert [row["id"] for row in looked["sample"]] == [public(row) for row in paid[:10]]
    assert not Replay.objects.exists()

    asked = api.post(at(consumer), {"reason": "we came late"})
    body = asked.json()
    assert asked.status_code == 202
    assert (body["kind"], body["filter"], body["matched_count"]) == ("backfill", of(consumer), 12)
    assert replay.run_due(clock.now(), 0) == 12
    assert api.get(f"/replays/{body['id']}").json()["state"] == "finished"
    entry = AuditEntry.objects.get(action="replay.create")
    assert entry.reason == "we came late"
    assert api.post(at(consumer), {"dry_run": True}).json()["matched_count"] == 0
    assert_counters_are_true()


def test_an_invalid_backfill_request_is_refused(api: Api) -> None:
    path = at(ConsumerFactory.create())
    requests: list[tuple[dict[str, Any], str]] = [
        *(({"event_types": value}, "event_types") for value in ("a", list[str]())),
        ({"from": "then"}, "from"),
        ({"to": False}, "to"),
        ({"from": 2000000000000, "to": 1900000000000}, "to"),
        ({"states": ["dead"]}, "states"),
        ({"channel": "c"}, "channel"),
        ({"dry_run": None, "reason": 7}, "reason"),
        ({"rate_per_second": float("1e6")}, "rate_per_second"),
    ]
    for body, field in requests:
        assert problem(api.post(path, body)) == (422, "invalid_fields", field), body
