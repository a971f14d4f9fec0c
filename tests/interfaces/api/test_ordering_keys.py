"""Ordering keys over the API: listed, paused, resumed and skipped, with audit entries."""

from datetime import timedelta

import pytest

from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer
from delivery.models import Attempt, Delivery
from delivery.queue import fanout
from tests.support.calling import Api, problem
from tests.support.factories import ConsumerFactory
from tests.support.ordering import check, end, key_number_of, say, take

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api() -> Api:
    return Api(scopes=["replay", "read"])


@pytest.fixture
def consumer() -> Consumer:
    return ConsumerFactory.create(ordering=True, head_of_line="block")


def at(consumer: Consumer, key: str = "", what: str = "") -> str:
    path = f"/channels/{consumer.channel.slug}/consumers/{consumer.client_id}/ordering-keys"
    if key:
        path += f"/{ids.to_public(ids.ORDERING_KEY, key_number_of(consumer, key).id)}"
    return path + (f"/{what}" if what else "")


@pytest.mark.seed("S3-13")
def test_keys_are_listed_with_head_and_depth(api: Api, consumer: Consumer) -> None:
    say(consumer, "A1 A2 A3 B1")
    fanout.fan_out(100, slot=0)
    items = {item["ordering_key"]: item for item in api.get(at(consumer)).json()["items"]}
    assert {key: item["waiting_count"] for key, item in items.items()} == {"A": 2, "B": 0}
    key_row = items["A"]
    head = Delivery.objects.order_by("message_id").first()
    assert head is not None
    assert (key_row["head"], key_row["state"]) == (ids.to_public(ids.DELIVERY, head.id), "open")
    assert api.get(at(consumer, "A")).json() == key_row
    only = api.get(f"{at(consumer)}?ordering_key=B").json()["items"]
    assert [item["ordering_key"] for item in only] == ["B"]
    shown = api.get(f"/deliveries/{ids.to_public(ids.DELIVERY, head.id + 0)}").json()
    assert shown["next_attempt_at"]
    behind = Delivery.objects.order_by("message_id")[1]
    shown = api.get(f"/deliveries/{ids.to_public(ids.DELIVERY, behind.id)}").json()
    assert (shown["state"], shown["next_attempt_at"]) == ("Queued", None)


@pytest.mark.seed("S2-64")
def test_the_api_shows_the_throughput_of_a_key(api: Api, consumer: Consumer) -> None:
    say(consumer, "A1 B1 C1")
    fanout.fan_out(100, slot=0)
    assert api.get(at(consumer, "A")).json()["most_per_second"] is None
    now = clock.now()
    rows = {row.ordering_key: row for row in take(consumer, now)}
    end([rows["A"]], "delivered", now + timedelta(milliseconds=150))
    end([rows["C"]], "dead", now + timedelta(seconds=9))
    Attempt.objects.update(started_at=now)
    assert api.get(at(consumer, "B")).json()["most_per_second"] == pytest.approx(6.667)
    end([rows["B"]], "delivered", now + timedelta(milliseconds=250))
    Attempt.objects.update(started_at=now)
    (key_row,) = api.get(at(consumer)).json()["items"]
    assert (key_row["ordering_key"], key_row["state"]) == ("C", "blocked")
    assert key_row["most_per_second"] == 5


def test_a_key_is_paused_and_resumed(api: Api, consumer: Consumer) -> None:
    say(consumer, "A1 A2")
    fanout.fan_out(100, slot=0)
    answer = api.post(at(consumer, "A", "pause"), {"reason": "the room misbehaves"})
    assert (answer.status_code, answer.json()["state"]) == (200, "paused")
    assert api.get(f"{at(consumer)}?state=paused").json()["items"]
    assert not api.get(f"{at(consumer)}?state=open").json()["items"]
    assert api.post(at(consumer, "A", "resume")).json()["state"] == "open"
    actions = AuditEntry.objects.order_by("id").values_list("action", "reason")
    assert list(actions) == [
        ("ordering_key.pause", "the room misbehaves"),
        ("ordering_key.resume", ""),
    ]
    check()


def test_the_head_of_a_blocked_key_is_skipped_once(api: Api, consumer: Consumer) -> None:
    say(consumer, "A1 A2")
    fanout.fan_out(100, slot=0)
    now = clock.now()
    end(take(consumer, now), "dead", now)
    (key_row,) = api.get(f"{at(consumer)}?state=blocked").json()["items"]
    path = at(consumer, "A", "skip")
    answer = api.post(path, {"head": key_row["head"]})
    assert (answer.status_code, answer.json()["waiting_count"]) == (200, 0)
    assert problem(api.post(path, {"head": key_row["head"]}))[:2] == (409, "not_the_head")
    later = clock.now() + timedelta(seconds=1)
    end(take(consumer, later), "delivered", later)
    assert problem(api.post(path.replace("skip", "pause")))[:2] == (404, "unknown_ordering_key")
    check()


def test_ordering_keys_of_other_consumers_are_not_found(consumer: Consumer) -> None:
    """Those of other tenants: tests/interfaces/api/test_tenants.py."""
    say(consumer, "A1")
    fanout.fan_out(100, slot=0)
    other = ConsumerFactory.create(channel=consumer.channel)
    name = ids.to_public(ids.ORDERING_KEY, key_number_of(consumer, "A").id)
    assert Api(scopes=["read"]).get(f"{at(other)}/{name}").status_code == 404


def test_a_skip_names_a_delivery(api: Api, consumer: Consumer) -> None:
    say(consumer, "A1")
    fanout.fan_out(100, slot=0)
    for head in ("dlv_x", 1):
        assert problem(api.post(at(consumer, "A", "skip"), {"head": head}))[::2] == (422, "head")
    assert api.post(at(consumer, "A", "skip")).status_code == 200
