"""Kill a process at each step of a message's path: nothing is lost, and only some steps repeat.

The rows are those of "Failpoints" in docs/reliability.md, with a step on both sides of each commit;
test_failpoints_keys.py and test_failpoints_pull.py have the others. One broker serves all tests of
a file: its killed processes are replaced.
"""

import os
import re
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from delivery.processes import registration
from tests.crash.failpoint import retry_until_done
from tests.crash.place import NEVER, ONCE, PERHAPS_TWICE, THRICE, TWICE, Crash, Place, rows
from tests.support.broker import ROOT, Broker, descendants
from tests.support.receiver import Receiver, Reply
from tests.support.waiting import until

pytestmark = pytest.mark.e2e
REASON = re.compile(r'failpoints\.reach\((?:"(\w+)" if [^"]*? else )?"(\w+)"\)')
TICKS = {"limit": 3, "misfire": "fire_all", "body": "tick"}


def accept(place: Place) -> None:
    place.register()
    with place.dying():
        place.publish("key")


def accept_batch(place: Place) -> None:
    place.register()
    with place.dying():
        # A batch of this size commits alone, statement by statement, on every database.
        place.publish_batch(130)


@pytest.mark.mysql
def share_a_commit(place: Place) -> None:
    """Eight producers publish until the process of their requests dies."""
    place.register()

    def produce(number: int) -> None:
        for turn in range(20):
            place.publish(f"{number}-{turn}")
            if place.point.was_reached():
                return

    with place.dying():
        threads = [threading.Thread(target=produce, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(place.published) >= len(threads)


@pytest.mark.seed("S2-65")
def accept_numbered(place: Place) -> None:
    place.register(ordering=True)
    place.publish("1", ordering_key="A", number=1)
    with place.dying():
        place.publish("2", ordering_key="A", number=2)
    place.publish("3", ordering_key="A", number=3)
    assert place.published == sorted(place.published)
    counted = place.counts.read(
        "SELECT channel.slug, kept.expected, kept.skipped_count "
        "FROM channels_app_sequence AS kept "
        "JOIN channels_app_channel AS channel ON channel.id = kept.channel_id"
    )
    assert [row[1:] for row in counted if row[0] == place.channel] == [(4, 0)]


def push(place: Place) -> list[str]:
    place.register()
    place.publish("first")  # now its pump knows the consumer as idle
    place.settle()
    with place.dying():
        return [place.publish("key")]


def push_delayed(place: Place) -> None:
    """Queue deliveries, and claim them later."""
    place.register()
    with place.dying():
        # A message that is not due yet cannot be claimed at its fan-out. Where that comes so late
        # that it is due by then, the step is not reached, and further messages are published.
        while not place.point.was_reached():
            place.publish_batch(5, delay_ms=1000)
            with suppress(AssertionError):
                until(place.point.was_reached, f"a process at {place.step}", seconds=10)


def _send_slowly(place: Place) -> None:
    place.register("/slow?ms=1500")
    place.publish("key")
    place.receiver.wait_for(1)


@pytest.mark.mysql
def release_what_a_dead_pump_holds(place: Place) -> None:
    _send_slowly(place)
    with place.dying():
        os.kill(place.counts.living("pump")[0], signal.SIGKILL)


def reap_a_pump(place: Place) -> None:
    _send_slowly(place)
    # A cluster that restarts at once takes over its own registration, so no pump is reaped.
    with place.dying(), _paused(place.broker):
        os.kill(_cluster(place.broker), signal.SIGKILL)
        place.wait_until(lambda: _is_quiet(place), "its registration stays fresh")


def _is_quiet(place: Place) -> bool:
    """Whether the pump's heartbeat is so old that others take it for dead."""
    ((beat,),) = place.counts.read(
        "SELECT MAX(heartbeat_at) FROM delivery_pumpslot WHERE kind = 'pump'"
    )
    if beat is None:
        return True  # reaped already
    age = datetime.now(UTC).replace(tzinfo=None) - datetime.fromisoformat(str(beat))
    return age > timedelta(seconds=registration.QUIET_S)


@contextmanager
def _paused(broker: Broker) -> Iterator[None]:
    """Stop the supervisor inside the block, so that it restarts nothing."""
    assert broker.process is not None
    broker.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.process.send_signal(signal.SIGCONT)


def _cluster(broker: Broker) -> int:
    """The process id of the cluster that started the pumps."""
    pids = broker.workers()
    return max(pid for pid in pids if set(descendants(pid)) & set(pids))


def replay(place: Place) -> None:
    place.register()
    place.publish_batch(5)
    place.settle()
    with place.dying():
        wanted = {"channel": place.channel, "states": ["delivered"]}
        path = f"/replays/{place.call('POST', '/replays', json={'filter': wanted})['id']}"
    place.wait_until(lambda: place.call("GET", path)["state"] == "finished", "it does not end")
    assert place.call("GET", path)["replayed_count"] == 5


def restore_from_the_lake(place: Place) -> None:
    place.register()
    place.publish_batch(5)
    place.settle()
    code = f"from tests.support import restoring; restoring.take_away_and_bring({place.channel!r})"
    with place.dying():
        place.broker.manage("shell", "-c", code)
    restored = "SELECT COUNT(*) FROM delivery_restored"
    place.wait_until(lambda: not place.counts.number(restored), "rows wait")


def forward_a_dead_letter(place: Place) -> None:
    # Where the first failure is not recorded, the message is sent again before it is dead.
    failures = 2 if place.step == "in_settle" else 1
    place.receiver.script("/fails", [*[Reply(500)] * failures, Reply(200)])
    with Receiver() as consumer:
        dead = Place(place.broker, place.point, consumer)
        dead.register("/dead")
        place.register("/fails", max_attempts=1, dead_letter_channel=dead.channel)
        with place.dying():
            message_id = place.publish("key")

        def is_published() -> bool:
            return not dead.counts.open_count() and dead.counts.message_count(dead.channel) == 1

        place.wait_until(is_published, "the dead letter is not published")
        (delivery,) = place.call("GET", f"/messages/{message_id}")["deliveries"]
        assert delivery["state"] == "Dead"
        # A replay resets the failures: the check at the end wants none charged.
        place.call("POST", f"/deliveries/{delivery['id']}/replay", json={})
        place.settle()
        assert place.counts.number("SELECT COUNT(*) FROM delivery_deadletter") == 0
        assert place.counts.message_count(dead.channel) == 1
        (request,) = consumer.requests()
        assert request.header("Hookstation-Dead-Letter-Message") == message_id
        assert request.body == b"key"


def fire(place: Place) -> None:
    place.register()
    with place.dying():
        place.call("PUT", _ticks(place), json=TICKS | {"every_ms": 1000})
    _end_of_schedule(place)


# All changes are written by the same code; after its commit each is repeated differently.
def put_schedule(place: Place) -> None:
    place.register()
    with place.dying():
        place.call("PUT", _ticks(place), json=TICKS | {"every_ms": 500})
    _check_audited(place, "schedule.create")
    _end_of_schedule(place)


def change_schedule(place: Place) -> None:
    _put_later(place)
    with place.dying():
        place.call("PATCH", _ticks(place), json={"start_at": None})
    _check_audited(place, "schedule.create", "schedule.update")
    _end_of_schedule(place)


def pause_schedule(place: Place) -> None:
    _put_later(place)
    with place.dying():
        place.call("POST", f"{_ticks(place)}/pause")
    _check_audited(place, "schedule.create", "schedule.pause")
    assert place.call("GET", _ticks(place))["state"] == "paused"
    place.call("PATCH", _ticks(place), json={"start_at": None})
    place.call("POST", f"{_ticks(place)}/resume")
    _end_of_schedule(place)


def _ticks(place: Place) -> str:
    return f"{place.path}/schedules/ticks"


def _put_later(place: Place) -> None:
    """Make a schedule that does not fire before it is changed."""
    place.register()
    later = {"every_ms": 500, "start_at": "2090-01-01T00:00:00Z"}
    place.call("PUT", _ticks(place), json=TICKS | later)


def _check_audited(place: Place, *actions: str) -> None:
    assert place.counts.audited(f"schedule:{place.channel}/ticks") == [*actions]


def _end_of_schedule(place: Place) -> None:
    """Wait until the schedule has ended: each occurrence is one message."""

    def is_ended() -> bool:
        return bool(place.call("GET", _ticks(place))["state"] == "ended")

    place.wait_until(is_ended, "the schedule does not end")
    place.settle()
    recent = place.call("GET", _ticks(place))["recent"]
    assert [line["result"] for line in recent] == ["fired"] * 3
    place.published += [line["message"] for line in recent]


def cancel(place: Place) -> None:
    place.register()
    message_id = place.publish("key", delay_ms=600_000)
    with place.dying():
        _, tries = retry_until_done(place.broker, "DELETE", f"/messages/{message_id}")
    assert tries > 1


def reschedule(place: Place) -> None:
    place.register()
    message_id = place.publish("key", delay_ms=600_000)
    place.wait_until(lambda: _instants(place), "it is not fanned out")
    before = _instants(place)
    # Far ahead: a message sent before the repeated call could no longer be moved.
    path, later = f"/messages/{message_id}", {"delay_ms": 300_000}
    with place.dying(), suppress(requests.ConnectionError):
        url = f"{place.broker.base}{path}"
        requests.patch(url, json=later, headers=place.broker.http.headers, timeout=60)
    # Before the repeated call: the move happened completely or not at all.
    after = _instants(place)
    assert len(set(after)) == 1
    assert (after == before) is (place.step == "in_move")
    place.call("PATCH", path, json=later)
    place.make_due(message_id)


def _instants(place: Place) -> list[Any]:
    """The due times of a channel's only message and of its delivery."""
    found = place.counts.read(
        "SELECT channel.slug, message.due_at, delivery.due_at "
        "FROM delivery_delivery AS delivery "
        "JOIN channels_app_message AS message ON message.id = delivery.message_id "
        "JOIN channels_app_channel AS channel ON channel.id = message.channel_id"
    )
    return [due_at for slug, *dues in found if slug == place.channel for due_at in dues]


@pytest.mark.parametrize(
    "crash",
    [
        *rows(accept, ONCE, "before_accept", "after_accept", smoke=True),
        *rows(accept_batch, ONCE, "in_write"),
        *rows(share_a_commit, ONCE, "before_shared_accept", "after_shared_accept"),
        *rows(accept_numbered, ONCE, "in_sequence", "after_sequence"),
        *rows(push, ONCE, "in_claimed_fanout", "after_claimed_fanout", "before_send"),
        *rows(push, PERHAPS_TWICE, "after_send"),
        *rows(push, TWICE, "before_settle", smoke=True),
        *rows(push, TWICE, "in_settle"),
        *rows(push, ONCE, "after_settle", smoke=True),
        *rows(push_delayed, ONCE, "in_fanout", "after_fanout"),
        *rows(push_delayed, ONCE, "in_claim", "after_claim", smoke=True),
        *rows(release_what_a_dead_pump_holds, TWICE, "after_takeover", "in_release"),
        *rows(reap_a_pump, TWICE, "after_reap"),
        *rows(replay, TWICE, "in_replay", "after_replay", smoke=True),
        *rows(restore_from_the_lake, TWICE, "in_restore", "after_restore"),
        *rows(forward_a_dead_letter, THRICE, "in_settle"),
        *rows(forward_a_dead_letter, TWICE, "in_forward"),
        *rows(fire, ONCE, "in_fire", "after_fire"),
        *rows(put_schedule, ONCE, "in_schedule", "after_schedule"),
        *rows(change_schedule, ONCE, "after_schedule"),
        *rows(pause_schedule, ONCE, "after_schedule"),
        *rows(cancel, NEVER, "in_cancel", "after_cancel"),
        *rows(reschedule, ONCE, "in_move", "after_move"),
    ],
)
def test_a_crash_loses_nothing_and_repeats_only_as_promised(place: Place, crash: Crash) -> None:
    place.survive(crash)


def booked(arrivals: list[str]) -> Counter[str]:
    """How often a consumer books each message that has an effect once, however often it comes.

    docs/reliability.md asks consumers to store the message id in the transaction of the effect, and
    to answer a repeat like the first request.
    """
    with closing(sqlite3.connect(":memory:")) as tables:
        tables.execute("CREATE TABLE done (message_id TEXT PRIMARY KEY)")
        tables.execute("CREATE TABLE booked (message_id TEXT)")
        for message_id in arrivals:
            # Both rows or none; a repeat violates the primary key.
            with suppress(sqlite3.IntegrityError), tables:
                tables.execute("INSERT INTO done VALUES (?)", [message_id])
                tables.execute("INSERT INTO booked VALUES (?)", [message_id])
        return Counter(key for (key,) in tables.execute("SELECT message_id FROM booked"))


@pytest.mark.seed("S2-59", "S4-20")
def test_a_repeated_attempt_is_counted_once(place: Place) -> None:
    place.survive(Crash(push, "before_settle", TWICE))
    assert booked(place.arrivals()) == Counter(place.published)


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
