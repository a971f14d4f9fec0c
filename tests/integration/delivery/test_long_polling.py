"""Long polls: served in turn, without queries, and woken by datagrams between processes."""

import math
import threading
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db import connection
from django.db.backends.utils import CursorWrapper

from channels_app.models import Consumer
from channels_app.registry.cache import ConsumerConfig, config_cache
from delivery.models import Delivery, PumpSlot
from delivery.processes import registration, wakeups
from delivery.processes.wakeups import Listener, wakeup_sender
from delivery.pull import long_polling, receiving
from delivery.pull.long_polling import long_polls
from delivery.pull.receiving import Deliver, ReceivedMessage, ReceiveRequest
from tests.support import clocks, pumping
from tests.support.broker import wait_until
from tests.support.pulling import Worker, bring, waiting
from tests.support.pumping import make_channel, publish, pump_until

pytestmark = pytest.mark.django_db(transaction=True)
PATIENCE_S = 60.0
WISH = ReceiveRequest(most=1, lease_ms=30_000, worker="one")


@pytest.fixture(autouse=True)
def _no_scans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(long_polling, "MIN_SCAN_INTERVAL_S", 3600.0)
    monkeypatch.setattr(long_polls, "_scanned_at", float("inf"))
    yield
    monkeypatch.undo()
    assert not long_polls.waiting()


class Receiver:
    """A request that waits without a thread, and the answers that it got."""

    def __init__(self, view: ConsumerConfig, wait_s: float, *, is_there: bool = True) -> None:
        self.answers: list[list[int]] = []
        self.is_there = is_there
        done = receiving.receive_ignoring_outage(
            view, WISH, wait_s, owner=id(self), defer=self.defer
        )
        assert done == []

    def defer(self) -> Deliver:
        return self.answer

    def answer(self, received_message: Sequence[ReceivedMessage], confirm: Any) -> bool:
        self.answers.append([one.row.message_id for one in received_message])
        if self.is_there:
            confirm()
        return self.is_there


def view_of(consumer: Consumer) -> ConsumerConfig:
    return config_cache.consumers()[consumer.id]


def another(consumer: Consumer) -> Consumer:
    """Add a consumer to the channel, so that a receiver cannot fan out its messages."""
    return waiting(channel=consumer.channel)


def test_waiting_receivers_cause_no_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """While fifty receivers wait, no thread queries the database.

    Except for the addresses of pumps, which are read every few seconds however many wait.
    """
    monkeypatch.setattr(wakeups, "QUIET_REFRESH_S", 3600.0)
    move = clocks.forward(monkeypatch, long_polling, receiving)
    wakeup_sender.close()
    view = view_of(waiting())
    asked: Tally[str] = Tally()

    def count(self: CursorWrapper, sql: Any, *rest: Any) -> Any:
        asked[threading.current_thread().name] += 1
        return execute(self, sql, *rest)

    execute = CursorWrapper.execute
    monkeypatch.setattr(CursorWrapper, "execute", count)
    receivers = [Receiver(view, PATIENCE_S) for _ in range(50)]
    assert long_polls.waiting() == {view.id: 50}
    assert asked  # each queries once before it waits
    wait_until(
        lambda: wakeup_sender._read_at > 0 and not wakeup_sender._lock.locked(),
        PATIENCE_S,
        "no addresses are read",
    )
    wait_until(
        lambda: math.isfinite(long_polls._asleep_until), PATIENCE_S, "the thread does not wait"
    )
    asked.clear()
    for seconds in (1.5, 1.5, PATIENCE_S):  # pumps are told every second who waits
        asleep_until = long_polls._asleep_until
        move(seconds)
        long_polls._interrupt()
        wait_until(
            lambda former=asleep_until: long_polls._asleep_until > former,  # type: ignore[misc]  # bound now
            PATIENCE_S,
            "the thread does not run",
        )
    wait_until(
        lambda: all(receiver.answers for receiver in receivers), PATIENCE_S, "they still wait"
    )
    assert not asked
    assert [receiver.answers for receiver in receivers] == [[[]]] * 50


@pytest.mark.parametrize("is_alone", [True, False])
def test_waiting_receivers_get_messages_in_turn(is_alone: bool) -> None:
    consumer = waiting()
    if not is_alone:
        another(consumer)
    receivers = [Receiver(view_of(consumer), PATIENCE_S) for _ in range(3)]
    for place, receiver in enumerate(receivers):
        ids = publish(consumer.channel, b"x") if is_alone else bring(consumer, b"x")
        if not is_alone:
            long_polls.wake([consumer.id])
        wait_until(lambda one=receiver: bool(one.answers), PATIENCE_S, "nobody hears of it")  # type: ignore[misc]  # bound now
        assert receiver.answers == [ids]
        assert [bool(one.answers) for one in receivers[place + 1 :]] == [False] * (2 - place)
    rows = Delivery.objects.filter(consumer=consumer)
    assert {(row.state, row.attempt_count) for row in rows} == {("in_flight", 1)}


def test_each_of_many_messages_wakes_a_receiver() -> None:
    consumer = waiting()
    receivers = [Receiver(view_of(consumer), PATIENCE_S) for _ in range(20)]
    ids = publish(consumer.channel, *[b"x"] * 20)
    wait_until(
        lambda: all(receiver.answers for receiver in receivers), PATIENCE_S, "some get nothing"
    )
    assert sorted(one for receiver in receivers for (one,) in receiver.answers) == sorted(ids)


def test_a_message_that_one_receiver_leaves_goes_to_the_next() -> None:
    consumer = waiting()
    gone, there = Receiver(view_of(consumer), 60, is_there=False), Receiver(view_of(consumer), 60)
    ids = publish(consumer.channel, b"x")
    wait_until(lambda: bool(there.answers), PATIENCE_S, "it is held by nobody")
    assert gone.answers == there.answers == [ids]
    row = Delivery.objects.get()
    assert (row.state, row.attempt_count, row.interruption_count) == ("in_flight", 1, 0)
    assert not row.attempts.exists()


def test_a_message_handed_to_a_receiver_reaches_all_other_consumers() -> None:
    """A second consumer registers after the receiver began to wait as the only one."""
    consumer = waiting()
    receiver = Receiver(view_of(consumer), PATIENCE_S)
    later = another(consumer)
    publish(consumer.channel, b"x")
    wait_until(lambda: bool(receiver.answers), PATIENCE_S, "it is not taken")
    assert len(Worker(later).receive()) == 1


@pytest.mark.slow("waits for a lease of a second")
def test_an_expired_lease_wakes_a_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_polling, "MIN_SCAN_INTERVAL_S", 1.0)
    monkeypatch.setattr(long_polls, "_scanned_at", float("-inf"))
    consumer = waiting(b"x")
    (message,) = Worker(consumer).receive(lease_s=1)
    (again,) = Worker(consumer).receive(wait_s=20)
    assert (again["id"], again["attempt"]) == (message["id"], 2)


def test_a_pump_announces_the_process_of_waiting_receivers() -> None:
    consumer = waiting()
    other = another(consumer)
    listener = Listener()
    with pumping.pumping() as pump:
        wakeup_sender.waiting(listener, [consumer.id], asks=True)
        publish(consumer.channel, b"x")
        pump_until(pump, lambda: Delivery.objects.count() == 2)
        assert listener.read().consumer_ids == {consumer.id} - {other.id}
    listener.close()


def test_a_wakeup_goes_to_the_process_of_a_waiting_receiver() -> None:
    """In another web process, and back to a pump where no receiver waits any more."""
    consumer = waiting()
    elsewhere = Listener()
    assert registration.acquire("here", PumpSlot.Kind.WEB, 1, long_polls.start())
    wakeup_sender.due([])  # learn which processes listen
    wakeup_sender.taking(elsewhere, [consumer.channel_id])
    channel_id, found = consumer.channel_id, list[int]()

    def is_told() -> bool:
        found.extend(publish(consumer.channel, b"x", priority=3))
        return bool(elsewhere.read().take)

    wait_until(is_told, PATIENCE_S, "nobody is told")
    with pumping.pumping() as pump:
        wakeup_sender.close()
        wakeup_sender.due([])
        host, port = long_polls.start().split(" ")
        wakeup_sender.take((host, int(port)), channel_id, 3, found[-1:])
        pump_until(pump, lambda: Delivery.objects.filter(message_id=found[-1]).exists())
    elsewhere.close()
    connection.close()


def test_channels_with_other_consumers_are_fanned_out_by_pumps() -> None:
    consumer = waiting()
    another(consumer)
    receiver = Receiver(view_of(consumer), 1.0)
    publish(make_channel(), b"x")
    publish(consumer.channel, b"x")
    wait_until(lambda: bool(receiver.answers), PATIENCE_S, "it still waits")
    assert receiver.answers == [[]]
    assert not Delivery.objects.exists()
