"""Sticky keys: a key stays with one worker of a pull consumer until that is gone (S2-66)."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from channels_app.database import clock
from channels_app.ingest import accept
from channels_app.ingest.accept import Publication
from channels_app.models import Consumer
from delivery.models import PullWorker
from delivery.pull import key_affinity
from delivery.pull.key_affinity import sticky_keys
from delivery.queue import fanout, lease_rows
from tests.support.calling import problem
from tests.support.ordering import check
from tests.support.pulling import Worker, bring, waiting
from tests.support.pumping import view_of

pytestmark = pytest.mark.django_db
KEYS = [f"room-{n}" for n in range(60)]


@pytest.fixture(autouse=True)
def books() -> Iterator[None]:
    sticky_keys.forget()
    yield
    check()


@pytest.fixture
def consumer() -> Consumer:
    return waiting(ordering=True)


def bring_all(consumer: Consumer, text: bytes) -> None:
    """Publish and fan out a message of each key."""
    items = [Publication(body=text, ordering_key=key) for key in KEYS]
    accept.accept(view_of(consumer.channel), None, items)
    while fanout.fan_out(100, slot=0).message_count:
        pass


def take(consumer: Consumer, name: str, **asked: object) -> set[str]:
    """Receive and acknowledge as a worker; return the keys that it got."""
    worker = Worker(consumer)
    got = worker.receive(**{"worker_id": name, "keys": "sticky", "max": 100} | asked)
    if got:
        worker.say("ack", *(one["lease"] for one in got))
    return {one["ordering_key"] for one in got}


def leave(name: str) -> None:
    """Make a worker absent for so long that its keys are given to others."""
    PullWorker.objects.filter(name=name).update(keys_until=clock.now())
    sticky_keys.forget()


@pytest.mark.seed("S2-66")
def test_each_key_has_one_worker(consumer: Consumer) -> None:
    names = ("a", "b", "c", "d")
    for name in names:
        assert take(consumer, name) == set()
    rounds = []
    for text in (b"1", b"2"):
        bring_all(consumer, text)
        got = {name: take(consumer, name) for name in reversed(names)}
        assert sum(map(len, got.values())) == len(KEYS), "a key came to two of them, or to none"
        assert set[str]().union(*got.values()) == set(KEYS)
        assert all(got.values()), "one of them got nothing"
        rounds.append(got)
    assert rounds[0] == rounds[1]


@pytest.mark.seed("S2-66")
def test_a_joining_worker_takes_only_its_keys(consumer: Consumer) -> None:
    for name in ("a", "b"):
        take(consumer, name)
    bring_all(consumer, b"1")
    before = {name: take(consumer, name) for name in ("a", "b")}
    assert take(consumer, "c") == set()
    bring_all(consumer, b"2")
    after = {name: take(consumer, name) for name in ("a", "b", "c")}
    assert after["a"] < before["a"]
    assert after["b"] < before["b"]
    assert after["c"] == (before["a"] | before["b"]) - after["a"] - after["b"]


def test_keys_of_a_departed_worker_move_at_once(consumer: Consumer) -> None:
    for name in ("a", "b"):
        take(consumer, name)
    bring_all(consumer, b"1")
    mine = take(consumer, "a")
    assert take(consumer, "a") == set(), "the others are left to b"
    leave("b")
    assert take(consumer, "a") == set(KEYS) - mine


def test_a_key_leased_by_a_departed_worker_waits_for_the_lease(consumer: Consumer) -> None:
    """A new worker of a key starts after its former worker's leases have ended."""
    take(consumer, "a")
    for text in (b"1", b"2"):
        bring(consumer, text, ordering_key="room")
    old = Worker(consumer)
    (first,) = old.receive(worker_id="a", keys="sticky")
    leave("a")
    assert take(consumer, "b") == set()
    old.say("ack", first["lease"])
    assert take(consumer, "b") == {"room"}


def test_messages_without_a_key_go_to_any_worker(consumer: Consumer) -> None:
    for name in ("a", "b"):
        take(consumer, name)
    for name in ("a", "b", "a"):
        bring(consumer, b"x")
        assert take(consumer, name) == {""}


def test_without_sticky_any_message_is_received(consumer: Consumer) -> None:
    take(consumer, "a")
    bring_all(consumer, b"1")
    assert take(consumer, "other", keys="any") == set(KEYS)
    assert PullWorker.objects.get(name="other").keys_until is None


def test_others_take_the_oldest_messages_of_a_slow_worker(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        take(consumer, name)
    bring_all(consumer, b"1")
    mine = take(consumer, "a")
    assert take(consumer, "a") == set()
    monkeypatch.setattr(key_affinity, "SCAN_ROWS", len(KEYS) - len(mine))
    assert len(take(consumer, "a", max=2)) == 2


def test_a_single_worker_gets_all_keys_by_priority(consumer: Consumer) -> None:
    bring(consumer, b"later", ordering_key="x", priority=1)
    bring(consumer, b"sooner", ordering_key="y", priority=9)
    got = Worker(consumer).receive(worker_id="a", keys="sticky", max=1)
    assert [one["body"] for one in got] in (["sooner"], ["later"]), "one call in ten: the oldest"


def test_a_long_poll_gets_no_message_of_another_workers_key(consumer: Consumer) -> None:
    for name in ("a", "b"):
        take(consumer, name)
    bring_all(consumer, b"1")
    take(consumer, "a")
    assert take(consumer, "a", wait_s=0.5) == set()


def test_sticky_requires_a_worker_id(consumer: Consumer) -> None:
    answer = Worker(consumer).api.post(f"{Worker(consumer).path}/receive", {"keys": "sticky"})
    assert problem(answer) == (422, "invalid_fields", "worker_id")
    answer = Worker(consumer).api.post(f"{Worker(consumer).path}/receive", {"keys": "mine"})
    assert problem(answer) == (422, "invalid_fields", "keys")


def test_a_worker_keeps_its_keys_as_long_as_its_leases(consumer: Consumer) -> None:
    for name, lease_s, least, most in (("a", 1, 28, 30), ("b", 60, 58, 60), ("c", 3600, 298, 300)):
        take(consumer, name, lease_s=lease_s)
        until = PullWorker.objects.get(name=name).keys_until
        assert until is not None
        stay = (until - clock.now()).total_seconds()
        assert least - 20 < stay <= most, "the clock goes on while this is read"
    assert lease_rows.delete_workers(clock.now() + timedelta(days=8)) == 3
