"""Kill a process at each step of a message's path: nothing is lost, and only some steps repeat.

The parameters are the rows of "The path of a message" in docs/architecture.md, with a step on both
sides of each commit. One broker serves all tests: its killed processes are replaced.
"""

import os
import re
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import requests

from delivery.processes import registration
from tests.crash.counts import Counts
from tests.crash.failpoint import TIMEOUT_S, Failpoint, at, retry_until_done
from tests.support import broker as broker_module
from tests.support.broker import ROOT, Broker, heard_ids, wait_until
from tests.support.receiver import Receiver, Reply
from tests.support.waiting import until

pytestmark = pytest.mark.e2e
SETTINGS = {
    # One process, so that all requests may share a commit; replaced soon after its death.
    "HOOKSTATION_WEB_WORKERS": "1",
    "GRANIAN_RESPAWN_INTERVAL": "0.2",
    "HOOKSTATION_LEASE_GRACE_MS": "2000",
}
REASON = re.compile(r'failpoints\.reach\((?:"(\w+)" if [^"]*? else )?"(\w+)"\)')
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Place:
    """A running broker, and a channel of the test's own with a consumer."""

    broker: Broker
    point: Failpoint
    receiver: Receiver
    channel: str = field(default_factory=lambda: f"crash-{next(_numbers)}")

    @property
    def path(self) -> str:
        return f"/channels/{self.channel}"

    def register(self, target: str = "/ok", **values: Any) -> None:
        """Make the channel and its consumer, which calls the test's own receiver."""
        retry_until_done(self.broker, "PUT", self.path, json={})
        body = {"url": self.receiver.url(target), "timeout_ms": 30_000, **values}
        retry_until_done(self.broker, "PUT", f"{self.path}/consumers/one", json=body)

    @property
    def puller(self) -> str:
        return f"{self.path}/consumers/puller"

    def publish(
        self, key: str, delay_ms: int = 0, ordering_key: str = "", number: int | None = None
    ) -> str:
        """Publish a message until it is acknowledged; return its id."""
        headers = {"Idempotency-Key": key, "Hookstation-Delay": str(delay_ms)}
        if ordering_key:
            headers["Hookstation-Ordering-Key"] = ordering_key
        if number is not None:
            headers["Hookstation-Producer-Seq"] = f"{number}"
        path = f"{self.path}/messages"
        answer, _ = retry_until_done(self.broker, "POST", path, data=key, headers=headers)
        return str(answer["id"])

    def publish_batch(self, number: int, delay_ms: int = 0) -> list[str]:
        """Publish ``number`` messages in one request until it is acknowledged; return their ids."""
        items = [
            {"body": "x", "idempotency_key": f"item-{next(_numbers)}", "delay_ms": delay_ms}
            for _ in range(number)
        ]
        answer, _ = retry_until_done(self.broker, "POST", f"{self.path}/messages/batch", json=items)
        return [item["id"] for item in answer["items"]]

    def heard(self) -> Counter[str]:
        """How often the receiver got each message."""
        path = {request.path for request in self.receiver.requests()}
        return Counter(key for one in path for key in heard_ids(self.receiver, one))

    def settle(self) -> None:
        """Wait until no delivery is open, and check the counters."""
        counts = Counts(self.broker)
        wait_until(lambda: not counts.open_count(), TIMEOUT_S, "rows stay open", self.broker.log)
        counts.check()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Failpoint]]:
    """The broker that all tests share."""
    folder = tmp_path_factory.mktemp("crash")
    point = Failpoint(folder)
    settings = SETTINGS | point.setting
    with broker_module.running(folder, **settings) as broker:
        yield broker, point


@pytest.fixture
def place(started: tuple[Broker, Failpoint], receiver: Receiver) -> Place:
    """The test's own channel on the shared broker."""
    return Place(*started, receiver)


@pytest.mark.parametrize(
    "name",
    at("before_accept", "in_write", "after_accept", smoke=("before_accept", "after_accept")),
)
def test_a_request_that_dies_with_its_process_is_stored_once(place: Place, name: str) -> None:
    place.register()
    with place.point.armed(place.broker, name):
        # A batch of this size commits alone, statement by statement, on every database.
        ids = place.publish_batch(130) if name == "in_write" else [place.publish("key")]
    place.settle()
    assert place.heard() == Counter(ids)
    assert Counts(place.broker).message_count(place.channel) == len(ids)


@pytest.mark.mysql
@pytest.mark.parametrize("name", ["before_shared_accept", "after_shared_accept"])
def test_requests_that_share_a_commit_are_each_stored_once(place: Place, name: str) -> None:
    place.register()
    ids: list[str] = []

    def produce(number: int) -> None:
        for turn in range(20):
            ids.append(place.publish(f"{number}-{turn}"))
            if place.point.was_reached():
                return

    with place.point.armed(place.broker, name):
        threads = [threading.Thread(target=produce, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(ids) >= len(threads)
    place.settle()
    assert place.heard() == Counter(ids)
    assert Counts(place.broker).message_count(place.channel) == len(ids)


@pytest.mark.seed("S2-65")
@pytest.mark.parametrize("name", at("in_sequence", "after_sequence"))
def test_numbered_messages_whose_process_dies_are_stored_once_in_their_order(
    place: Place, name: str
) -> None:
    place.register(ordering=True)
    ids = [place.publish("1", ordering_key="A", number=1)]
    with place.point.armed(place.broker, name):
        ids.append(place.publish("2", ordering_key="A", number=2))
    ids.append(place.publish("3", ordering_key="A", number=3))
    place.settle()
    assert ids == sorted(ids)
    assert place.heard() == Counter(ids)
    assert list(place.heard()) == ids, "they came in another order"
    assert Counts(place.broker).message_count(place.channel) == len(ids)
    counted = Counts(place.broker).read(
        "SELECT channel.slug, kept.expected, kept.skipped_count "
        "FROM channels_app_sequence AS kept "
        "JOIN channels_app_channel AS channel ON channel.id = kept.channel_id"
    )
    assert [row[1:] for row in counted if row[0] == place.channel] == [(4, 0)]


ONCE, TWICE, PERHAPS_TWICE = {1}, {2}, {1, 2}


@pytest.mark.parametrize(
    ("name", "times"),
    at(
        ("in_claimed_fanout", ONCE),
        ("after_claimed_fanout", ONCE),
        ("before_send", ONCE),
        ("after_send", PERHAPS_TWICE),
        ("before_settle", TWICE),
        ("in_settle", TWICE),
        ("after_settle", ONCE),
        smoke=("before_settle", "after_settle"),
    ),
)
def test_a_pump_that_dies_with_a_message_is_followed_by_one_that_delivers_it(
    place: Place, name: str, times: set[int]
) -> None:
    place.register()
    first = place.publish("first")  # now its pump knows the consumer as idle
    place.settle()
    with place.point.armed(place.broker, name):
        message_id = place.publish("key")
    place.settle()
    assert place.heard().keys() == {first, message_id}
    assert place.heard()[message_id] in times


@pytest.mark.parametrize(
    "name",
    at("in_fanout", "after_fanout", "in_claim", "after_claim", smoke=("in_claim", "after_claim")),
)
def test_queued_deliveries_survive_a_crash_in_fan_out_and_claim(place: Place, name: str) -> None:
    place.register()
    ids: list[str] = []
    with place.point.armed(place.broker, name):
        # A message that is not due yet cannot be claimed at its fan-out. Where that comes so late
        # that it is due by then, the step is not reached, and further messages are published.
        while not place.point.was_reached():
            ids += place.publish_batch(5, delay_ms=1000)
            with suppress(AssertionError):
                until(place.point.was_reached, f"a process at {name}", seconds=10)
    place.settle()
    assert place.heard() == Counter(ids)


@pytest.mark.mysql
@pytest.mark.parametrize("name", ["after_takeover", "in_release"])
def test_a_crash_while_releasing_a_dead_pumps_deliveries_is_recovered(
    place: Place, name: str
) -> None:
    place.register("/slow?ms=1500")
    message_id = place.publish("key")
    place.receiver.wait_for(1)
    with place.point.armed(place.broker, name):
        os.kill(_pump(place), signal.SIGKILL)
    place.settle()
    assert place.heard() == Counter({message_id: 2})


def test_a_crash_while_reaping_a_pump_is_recovered(place: Place) -> None:
    place.register("/slow?ms=1500")
    message_id = place.publish("key")
    place.receiver.wait_for(1)
    # A cluster that restarts at once takes over its own registration, so no pump is reaped.
    with place.point.armed(place.broker, "after_reap"), _paused(place.broker):
        os.kill(_worker(place.broker), signal.SIGKILL)
        time.sleep(registration.QUIET_S + registration.BEAT_S)
    place.settle()
    assert place.heard() == Counter({message_id: 2})


@pytest.mark.parametrize(
    "name", at("in_replay", "after_replay", smoke=("in_replay", "after_replay"))
)
def test_a_replay_slice_is_atomic(place: Place, name: str) -> None:
    place.register()
    ids = place.publish_batch(5)
    place.settle()
    with place.point.armed(place.broker, name):
        wanted = {"channel": place.channel, "states": ["delivered"]}
        answer, _ = retry_until_done(place.broker, "POST", "/replays", json={"filter": wanted})
    path = f"/replays/{answer['id']}"
    wait_until(
        lambda: retry_until_done(place.broker, "GET", path)[0]["state"] == "finished",
        TIMEOUT_S,
        "the replay does not end",
    )
    assert retry_until_done(place.broker, "GET", path)[0]["replayed_count"] == 5
    place.settle()
    assert place.heard() == Counter({message_id: 2 for message_id in ids})


@pytest.mark.parametrize("name", at("in_restore", "after_restore"))
def test_messages_restored_from_the_lake_are_stored_once(place: Place, name: str) -> None:
    place.register()
    ids = place.publish_batch(5)
    place.settle()
    code = f"from tests.support import restoring; restoring.take_away_and_bring({place.channel!r})"
    with place.point.armed(place.broker, name):
        place.broker.manage("shell", "-c", code)
    count = "SELECT COUNT(*) FROM delivery_restored"
    wait_until(
        lambda: not Counts(place.broker).number(count), TIMEOUT_S, "rows wait", place.broker.log
    )
    place.settle()
    assert place.heard() == Counter({message_id: 2 for message_id in ids})


@pytest.mark.parametrize(("name", "failures"), at(("in_settle", 2), ("in_forward", 1)))
def test_a_dead_letter_is_published_once_despite_a_crash(
    place: Place, name: str, failures: int
) -> None:
    dead = Place(place.broker, place.point, place.receiver)
    dead.register("/dead")
    place.receiver.script("/fails", [*[Reply(500)] * failures, Reply(200)])
    place.register("/fails", max_attempts=1, dead_letter_channel=dead.channel)
    with place.point.armed(place.broker, name):
        message_id = place.publish("key")

    def is_published() -> bool:
        counts = Counts(place.broker)
        return not counts.open_count() and counts.message_count(dead.channel) == 1

    wait_until(is_published, TIMEOUT_S, "the dead letter is not published", place.broker.log)
    (delivery,) = retry_until_done(place.broker, "GET", f"/messages/{message_id}")[0]["deliveries"]
    assert delivery["state"] == "Dead"
    # A replay resets the failures: the check below wants none charged.
    retry_until_done(place.broker, "POST", f"/deliveries/{delivery['id']}/replay", json={})
    place.settle()
    assert Counts(place.broker).number("SELECT COUNT(*) FROM delivery_deadletter") == 0
    assert Counts(place.broker).message_count(dead.channel) == 1
    (request,) = [one for one in place.receiver.requests() if one.path == "/dead"]
    assert request.header("Hookstation-Dead-Letter-Message") == message_id
    assert request.body == b"key"


@pytest.mark.parametrize("name", at("in_fire", "after_fire"))
def test_an_occurrence_is_fired_once_after_the_maintenance_process_crashes(
    place: Place, name: str
) -> None:
    place.register()
    with place.point.armed(place.broker, name):
        wanted = {"every_ms": 1000, "limit": 3, "misfire": "fire_all", "body": "tick"}
        retry_until_done(place.broker, "PUT", f"{place.path}/schedules/ticks", json=wanted)
    wait_until(
        lambda: (
            retry_until_done(place.broker, "GET", f"{place.path}/schedules/ticks")[0]["state"]
            == "ended"
        ),
        TIMEOUT_S,
        "the schedule does not end",
        place.broker.log,
    )
    place.settle()
    recent = retry_until_done(place.broker, "GET", f"{place.path}/schedules/ticks")[0]["recent"]
    assert [line["result"] for line in recent] == ["fired"] * 3
    assert place.heard() == Counter(line["message"] for line in recent)


@pytest.mark.parametrize(
    ("name", "how"),
    # All changes are written by the same code; after its commit each is repeated differently.
    at(
        ("in_schedule", "put"),
        ("after_schedule", "put"),
        ("after_schedule", "change"),
        ("after_schedule", "pause"),
    ),
)
def test_a_schedule_change_is_atomic(place: Place, how: str, name: str) -> None:
    place.register()
    path = f"{place.path}/schedules/ticks"
    wanted = {"every_ms": 500, "limit": 3, "misfire": "fire_all", "body": "tick"}
    if how != "put":
        # Keep it from firing before the change.
        retry_until_done(
            place.broker, "PUT", path, json=wanted | {"start_at": "2090-01-01T00:00:00Z"}
        )
    with place.point.armed(place.broker, name):
        if how == "put":
            retry_until_done(place.broker, "PUT", path, json=wanted)
        elif how == "change":
            retry_until_done(place.broker, "PATCH", path, json={"start_at": None})
        else:
            retry_until_done(place.broker, "POST", f"{path}/pause")
    first = [] if how == "put" else ["schedule.create"]
    done = {"put": "schedule.create", "change": "schedule.update", "pause": "schedule.pause"}
    assert Counts(place.broker).audited(f"schedule:{place.channel}/ticks") == [*first, done[how]]
    if how == "pause":
        assert retry_until_done(place.broker, "GET", path)[0]["state"] == "paused"
        retry_until_done(place.broker, "PATCH", path, json={"start_at": None})
        retry_until_done(place.broker, "POST", f"{path}/resume")
    wait_until(
        lambda: retry_until_done(place.broker, "GET", path)[0]["state"] == "ended",
        TIMEOUT_S,
        "the schedule does not end",
        place.broker.log,
    )
    place.settle()
    recent = retry_until_done(place.broker, "GET", path)[0]["recent"]
    assert [line["result"] for line in recent] == ["fired"] * 3
    assert place.heard() == Counter(line["message"] for line in recent)


@pytest.mark.parametrize("name", at("in_cancel", "after_cancel"))
def test_a_cancellation_can_be_repeated_after_a_crash(place: Place, name: str) -> None:
    place.register()
    message_id = place.publish("key", delay_ms=600_000)
    with place.point.armed(place.broker, name):
        _, tries = retry_until_done(place.broker, "DELETE", f"/messages/{message_id}")
    assert tries > 1
    place.settle()
    assert not place.heard()


@pytest.mark.parametrize("name", at("in_move", "after_move"))
def test_a_move_can_be_repeated_after_a_crash(place: Place, name: str) -> None:
    place.register()
    message_id = place.publish("key", delay_ms=600_000)
    wait_until(lambda: bool(_instants(place)), TIMEOUT_S, "it is not fanned out")
    before = _instants(place)
    # Far ahead: a message sent before the repeated call could no longer be moved.
    path, later = f"/messages/{message_id}", {"delay_ms": 300_000}
    with place.point.armed(place.broker, name), suppress(requests.ConnectionError):
        url = f"{place.broker.base}{path}"
        requests.patch(url, json=later, headers=place.broker.http.headers, timeout=60)
    # Before the repeated call: the move happened completely or not at all.
    after = _instants(place)
    assert len(set(after)) == 1
    assert (after == before) is (name == "in_move")
    retry_until_done(place.broker, "PATCH", path, json=later)
    retry_until_done(place.broker, "PATCH", path, json={"delay_ms": 0})
    place.settle()
    assert place.heard() == Counter([message_id])


@pytest.mark.seed("S2-60")
@pytest.mark.parametrize(
    ("name", "receipts"),
    at(
        ("in_claim", ONCE),
        ("after_claim", ONCE),
        ("before_receive_response", ONCE),
        ("in_extend", ONCE),
        ("in_settle", ONCE),
        ("after_pull_settle", ONCE),
    ),
)
def test_a_web_process_crash_during_receive_loses_nothing(
    place: Place, name: str, receipts: set[int]
) -> None:
    ids = pulled(place)
    got: Counter[str] = Counter()
    with place.point.armed(place.broker, name):
        while len(got) < len(ids):
            asked = {"max": 2, "wait_s": 5, "lease_s": 3}
            received, _ = retry_until_done(
                place.broker, "POST", f"{place.puller}/receive", json=asked
            )
            leases = [one["lease"] for one in received["messages"]]
            got.update(one["id"] for one in received["messages"])
            longer = {"leases": leases, "lease_s": 60}
            assert (
                retry_until_done(place.broker, "POST", "/leases/extend", json=longer)[0]["failed"]
                == []
            )
            # A worker without a response repeats the call, and learns that it was done.
            done, _ = retry_until_done(place.broker, "POST", "/leases/ack", json={"leases": leases})
            assert done == {"done": leases, "failed": []}
    place.settle()
    assert got.keys() == set(ids)
    assert set(got.values()) <= receipts


@pytest.mark.seed("S2-60")
@pytest.mark.parametrize(
    ("name", "what"),
    at(("in_settle", "nack"), ("after_pull_settle", "nack"), ("after_pull_settle", "release")),
)
def test_a_nack_or_release_is_counted_once_after_a_crash(
    place: Place, what: str, name: str
) -> None:
    pulled(place, number=1)
    asked = {"max": 1, "wait_s": 10, "lease_s": 60}
    received, _ = retry_until_done(place.broker, "POST", f"{place.puller}/receive", json=asked)
    leases = [one["lease"] for one in received["messages"]]
    said = {"leases": leases, "delay_s": 0}
    with place.point.armed(place.broker, name):
        done, _ = retry_until_done(place.broker, "POST", f"/leases/{what}", json=said)
    assert done == {"done": leases, "failed": []}
    received, _ = retry_until_done(place.broker, "POST", f"{place.puller}/receive", json=asked)
    (again,) = received["messages"]
    shown, _ = retry_until_done(place.broker, "GET", f"/deliveries/{again['delivery_id']}")
    assert (shown["attempt_count"], shown["failure_count"]) == (2, int(what == "nack"))
    retry_until_done(place.broker, "POST", "/leases/ack", json={"leases": [again["lease"]]})
    # The check below wants no failure charged: a replay starts a fresh budget.
    retry_until_done(place.broker, "POST", f"/deliveries/{again['delivery_id']}/replay")
    received, _ = retry_until_done(place.broker, "POST", f"{place.puller}/receive", json=asked)
    leases = [one["lease"] for one in received["messages"]]
    retry_until_done(place.broker, "POST", "/leases/ack", json={"leases": leases})
    place.settle()


@pytest.mark.seed("S4-R4")
@pytest.mark.parametrize("name", at("in_claim", "before_receive_response"))
def test_a_resuming_worker_gets_its_leases_after_another_crash(place: Place, name: str) -> None:
    ids = pulled(place, number=2)
    asked = {"max": 2, "wait_s": 10, "lease_s": 600, "worker_id": "w1"}
    received, _ = retry_until_done(place.broker, "POST", f"{place.puller}/receive", json=asked)
    assert [one["id"] for one in received["messages"]] == ids
    with place.point.armed(place.broker, name):
        back = asked | {"resume": True}
        again, _ = retry_until_done(place.broker, "POST", f"{place.puller}/receive", json=back)
    assert [one["id"] for one in again["messages"]] == ids
    for one in again["messages"]:
        shown, _ = retry_until_done(place.broker, "GET", f"/deliveries/{one['delivery_id']}")
        # The first attempt, the one that was claimed but not handed out, and this one.
        assert shown["attempt_count"] == (3 if name == "before_receive_response" else 2)
    leases = [one["lease"] for one in again["messages"]]
    done, _ = retry_until_done(place.broker, "POST", "/leases/ack", json={"leases": leases})
    assert done == {"done": leases, "failed": []}
    place.settle()


@pytest.mark.seed("S2-57")
@pytest.mark.parametrize(
    "name", at("in_claim", "after_claim", "in_settle", "before_receive_response")
)
def test_auto_ack_never_delivers_twice_after_a_crash(place: Place, name: str) -> None:
    ids = pulled(place)
    got: Counter[str] = Counter()
    lost = {"before_receive_response": 2}.get(name, 0)
    with place.point.armed(place.broker, name):
        while len(got) < len(ids) - lost or not place.point.was_reached():
            asked = {"max": 2, "wait_s": 5, "lease_s": 2, "auto_ack": True}
            received, _ = retry_until_done(
                place.broker, "POST", f"{place.puller}/receive", json=asked
            )
            got.update(one["id"] for one in received["messages"])
    place.settle()
    assert set(got.values()) == ONCE
    assert len(got) == len(ids) - lost


class Till:
    """An example consumer that books each message once, however often it comes.

    docs/reliability.md asks consumers to store the message id in the transaction of the effect, and
    to answer a repeat like the first request.
    """

    def __init__(self, folder: Path) -> None:
        self._tables = sqlite3.connect(folder / "till.sqlite3")
        self._tables.execute("CREATE TABLE done (message_id TEXT PRIMARY KEY)")
        self._tables.execute("CREATE TABLE booked (message_id TEXT)")

    def book(self, message_id: str) -> None:
        """Insert both rows or none; a repeat violates the primary key."""
        try:
            with self._tables:
                self._tables.execute("INSERT INTO done VALUES (?)", [message_id])
                self._tables.execute("INSERT INTO booked VALUES (?)", [message_id])
        except sqlite3.IntegrityError:
            return

    def booked(self) -> Counter[str]:
        """How often each message is booked."""
        return Counter(key for (key,) in self._tables.execute("SELECT message_id FROM booked"))


@pytest.mark.seed("S2-59", "S4-20")
def test_a_repeated_attempt_is_counted_once(place: Place, tmp_path: Path) -> None:
    place.register()
    till, ids = Till(tmp_path), place.publish_batch(3)
    place.settle()
    with place.point.armed(place.broker, "before_settle"):
        ids.append(place.publish("once"))
    place.settle()
    heard = heard_ids(place.receiver, "/ok")
    assert max(Counter(heard).values()) == 2, "nothing came twice: this proves nothing"
    for message_id in heard:
        till.book(message_id)
    assert till.booked() == Counter(ids)


@pytest.mark.seed("S2-59", "S4-20")
def test_a_result_recorded_before_a_crash_is_counted_once(place: Place, tmp_path: Path) -> None:
    ids, till = pulled(place), Till(tmp_path)
    came: Counter[str] = Counter()

    def work(*, dies: bool) -> None:
        asked = {"max": 2, "wait_s": 1, "lease_s": 2}
        received, _ = retry_until_done(place.broker, "POST", f"{place.puller}/receive", json=asked)
        for one in received["messages"]:
            came[one["id"]] += 1
            till.book(one["id"])
            if not dies:
                retry_until_done(
                    place.broker, "POST", "/leases/ack", json={"leases": [one["lease"]]}
                )

    work(dies=True)

    def is_done() -> bool:
        work(dies=False)
        open_count = Counts(place.broker).open_count()
        return len(came) == len(ids) and max(came.values()) >= 2 and not open_count

    wait_until(is_done, TIMEOUT_S, "what the dead one held does not come back")
    place.settle()
    assert till.booked() == Counter(ids)


def _instants(place: Place) -> list[Any]:
    """The due times of a channel's only message and of its delivery."""
    rows = Counts(place.broker).read(
        "SELECT channel.slug, message.due_at, delivery.due_at "
        "FROM delivery_delivery AS delivery "
        "JOIN channels_app_message AS message ON message.id = delivery.message_id "
        "JOIN channels_app_channel AS channel ON channel.id = message.channel_id"
    )
    return [due_at for slug, *dues in rows if slug == place.channel for due_at in dues]


def pulled(place: Place, number: int = 6) -> list[str]:
    """Publish messages for a pull consumer; return their ids."""
    retry_until_done(place.broker, "PUT", place.path, json={})
    retry_until_done(place.broker, "PUT", place.puller, json={"mode": "pull"})
    return place.publish_batch(number)


def test_every_failpoint_is_tested() -> None:
    sources = [*(ROOT / "channels_app").rglob("*.py"), *(ROOT / "delivery").rglob("*.py")]
    found = {name for path in sources for name in _points(path.read_text())}
    assert found
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_failpoints*.py")]
    assert found == set(re.findall(r'"((?:before|in|after)_\w+)"', "".join(texts)))


def _points(source: str) -> list[str]:
    """The failpoints named in a source file; every call must match the pattern."""
    calls = REASON.findall(source)
    assert len(calls) == source.count("failpoints.reach("), source[:200]
    return [name for names in calls for name in names if name]


@contextmanager
def _paused(broker: Broker) -> Iterator[None]:
    """Stop the supervisor inside the block, so that it restarts nothing."""
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.process.send_signal(signal.SIGCONT)


def _pump(place: Place) -> int:
    return Counts(place.broker).number("SELECT pid FROM delivery_pumpslot WHERE kind = 'pump'")


def _worker(broker: Broker) -> int:
    return max(_first(broker.workers(), broker_module.descendants))


def _first(pids: list[int], below: Callable[[int], list[int]]) -> list[int]:
    return [pid for pid in pids if set(below(pid)) & set(pids)]
