"""Failures between two steps: database outages, jumping clocks, and pumps that stop."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from django.db import OperationalError, connection

from channels_app.core import times
from channels_app.database import clock
from channels_app.ingest import accept
from channels_app.ingest.accept import Publication
from channels_app.models import Consumer, IdempotencyRecord, Message
from delivery.core.health_status import DISABLE_FAILURES
from delivery.maintenance import counters, retention, sweeps
from delivery.models import Attempt, ConsumerHealth, Counter, Delivery, PumpSlot, SweepRun
from delivery.processes import registration
from delivery.processes.wakeups import Listener
from delivery.pump import pump as pump_module
from delivery.pump.assignment import MAX_SCANNED
from delivery.pump.consumer_queue import LEAD
from delivery.pump.pump import Pump
from delivery.pump.results import ignoring_outage
from delivery.queue import claim, fanout
from delivery.queue.claim import ClaimRequest
from tests.support import clocks, counts, pumping
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_rounds,
    pump_until,
    view_of,
)
from tests.support.receiver import Receiver, Reply
from tests.support.threads import at_once, in_thread, is_lock_awaited
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"


@contextmanager
def database_away(matching: str = "") -> Iterator[None]:
    """Make statements that contain the text fail as during an outage."""

    def refuse(execute: Callable[..., Any], sql: str, *more: Any) -> Any:
        if matching in sql:
            raise OperationalError(2006, "Server has gone away")
        return execute(sql, *more)

    with connection.execute_wrapper(refuse):
        yield


@contextmanager
def clock_ahead(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    """Set the database's clock forward or back."""
    real = clock.now
    with monkeypatch.context() as patch:
        patch.setattr(clock, "now", lambda: real() + timedelta(seconds=seconds))
        yield


# -- pumps that stop -----------------------------------------------------------------------------


def test_a_stopping_pump_with_open_requests_is_not_considered_dead(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "BEAT_S", 0.05)
    has_beaten = threading.Event()
    receiver.script("/held", [Reply(until=has_beaten)])
    channel = make_channel()
    make_consumer(channel, receiver.url("/held"))
    publish(channel, b"x")
    beats = list[datetime]()

    def watch() -> None:
        slots = PumpSlot.objects.values_list("heartbeat_at", flat=True)
        try:
            for _ in range(4):
                last = slots.get()
                until(lambda: slots.get() > last, "it sends a heartbeat")  # noqa: B023
                beats.append(last)
        finally:
            has_beaten.set()

    with pumping.pumping() as pump:
        pump_until(pump, lambda: bool(pump.open))
        thread = in_thread(watch)
        pump.drain(120.0)
        thread.join()
    assert len(beats) == 4
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.attempt_count) == ("delivered", 1)


def test_a_pump_with_late_heartbeats_is_not_considered_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "QUIET_S", 60.0)
    move = clocks.forward(monkeypatch, registration)
    held = registration.acquire("stalled", "pump", 1)
    assert held is not None
    # All processes stalled, perhaps with the database; the maintenance process writes first.
    PumpSlot.objects.update(
        heartbeat_at=clock.now() - timedelta(seconds=registration.STALE_AFTER_S + 1)
    )
    sweeps.orphans()
    assert registration.beat(held, 0)
    move(61.0)
    sweeps.orphans()
    assert registration.beat(held, 0)


def test_a_process_of_another_container_with_the_same_host_name_is_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "QUIET_S", 60.0)
    move = clocks.forward(monkeypatch, registration)
    held = registration.acquire("elsewhere", "pump", 1)
    assert held is not None
    PumpSlot.objects.update(pid=2**22 + 1)  # no process here has this number
    for _ in range(7):
        assert registration.beat(held, 0)
        move(20.0)
        sweeps.orphans()
    move(60.0)
    sweeps.orphans()
    assert not registration.beat(held, 0)


def test_a_consumer_that_returns_to_its_pump_respects_max_in_flight(
    receiver: Receiver,
) -> None:
    has_returned = threading.Event()
    receiver.script("/held", [Reply(until=has_returned)])
    channel = make_channel()
    consumer = make_consumer(channel, receiver.url("/held"), max_in_flight=1)
    publish(channel, b"1", b"2", b"3")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: bool(pump.open))
        for state in ("paused", "retired", "active"):  # as if another pump had owned it meanwhile
            consumer.state = Consumer.State(state)
            consumer.save()
            pump.assignment.refresh()
        pump_rounds(pump, 5)
        assert len(receiver.requests()) == 1
        has_returned.set()
        pump_until(pump, all_finished)
    assert len(receiver.requests()) == 3
    assert receiver.max_concurrency == 1


def test_a_consumer_that_left_the_pump_is_not_claimed_for(
    receiver: Receiver,
) -> None:
    channel = make_channel()
    consumer = make_consumer(channel, receiver.url("/slow?ms=50"), max_in_flight=2)
    publish(channel, *[b"x"] * 20)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: bool(receiver.requests()))
        consumer.state = Consumer.State.RETIRED
        consumer.save()
        pump.assignment.refresh()
        pump_until(pump, lambda: not (pump.open or pump.recorder.results))
        started = Attempt.objects.count()
        pump_rounds(pump, 5)
        assert Attempt.objects.count() == started < 20


@pytest.mark.trap("a sweep that queues waiting rows again")
def test_the_pumps_cache_of_due_times_is_bounded() -> None:
    consumer = make_consumer(make_channel(), NOWHERE)
    with pumping.pumping() as pump:
        pump.assignment.refresh()
        queue, ready_consumers, now = (
            pump.assignment.queues[consumer.id],
            pump.assignment.ready_consumers,
            clock.now(),
        )
        for second in range(2 * MAX_SCANNED):
            for due_at in (now + timedelta(hours=1), now + timedelta(seconds=second)):
                queue.due = {4: due_at}
                ready_consumers.note(queue)
                ready_consumers.gather(now - LEAD, time.monotonic(), lambda *_: 1, 1)
            picks = ready_consumers.gather(due_at, time.monotonic(), lambda *_: 1, 1)
            assert [pick.queue for pick in picks] == [queue]
        assert len(ready_consumers._asleep) < MAX_SCANNED + 10


# -- database outages ----------------------------------------------------------------------------


def test_responses_are_kept_when_the_database_clock_is_unavailable(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_away = threading.Event()
    receiver.script("/held", [Reply(until=is_away)])
    channel = make_channel()
    make_consumer(channel, receiver.url("/held"), max_in_flight=3)
    publish(channel, b"1", b"2", b"3")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: len(receiver.requests()) == len(pump.open) == 3)
        is_away.set()
        with monkeypatch.context() as patch:

            def away() -> datetime:
                raise OperationalError(2006, "Server has gone away")

            patch.setattr(clock, "RESYNC_S", 0.0)
            patch.setattr(clock, "_ask", away)

            def are_read() -> bool:
                with database_away():
                    pump._wait(0.05)
                    ignoring_outage(pump._record)
                return not pump.open

            until(are_read, "the responses are read")
        pump_until(pump, all_finished)
        assert not pump.open
        assert [queue.in_flight for queue in pump.assignment.queues.values()] == [0]
    assert set(Delivery.objects.values_list("state", "attempt_count")) == {("delivered", 1)}


def test_a_response_during_a_database_outage_causes_no_busy_loop(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "RETRY_CAP_S", 0.1)
    is_away = threading.Event()
    receiver.script("/held", [Reply(until=is_away)])
    channel = make_channel()
    make_consumer(channel, receiver.url("/held"))
    publish(channel, b"1")
    listener = Listener()
    held = registration.acquire("away", "pump", 1, listener.address)
    assert held is not None
    pump, failures = Pump(held, listener), list[float]()
    pump_until(pump, lambda: len(pump.open) == 1)
    pump.membership.fence_at = 0.0  # it could not read the configuration for a long time

    def fail() -> None:
        failures.append(time.monotonic())
        raise OperationalError(2006, "Server has gone away")

    monkeypatch.setattr(pump, "round", fail)
    is_away.set()
    pump.run(lambda: len(failures) == 12, 60.0)
    registration.leave(held)
    pauses = [later - earlier for earlier, later in pairwise(failures)]
    # The response ends one wait, and at most some of libcurl's timers end others.
    assert sum(pause >= 0.04 for pause in pauses) >= 8
    assert Delivery.objects.get().state == "delivered"


def test_claimed_deliveries_are_sent_once_secrets_can_be_decrypted(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"), max_in_flight=3)
    publish(channel, b"1", b"2", b"3")
    with pumping.pumping() as pump:
        pump._beat()
        with database_away("channels_app_consumersecret"), pytest.raises(OperationalError):
            pump_until(pump, all_finished)
        pump_until(pump, all_finished)
        assert not pump.open
    assert len(receiver.requests()) == 3
    assert set(Delivery.objects.values_list("state", "attempt_count")) == {("delivered", 1)}


def test_a_consumer_that_was_deleted_does_not_stop_the_pump(receiver: Receiver) -> None:
    channel = make_channel()
    consumer = make_consumer(channel, receiver.url("/ok"))
    publish(channel, b"1")
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
        publish(channel, b"2")  # its health update is still pending
        pump_until(pump, all_finished)
        pump_until(pump, lambda: bool(pump.assignment._unsaved))
        ConsumerHealth.objects.all().delete()
        Delivery.objects.all().delete()
        Consumer.objects.filter(id=consumer.id).delete()
        pump.assignment._saved.clear()
        pump.round()


def test_410_disables_even_if_the_database_fails_in_between(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/status/410"))
    publish(channel, b"1")
    with pumping.pumping() as pump:
        with database_away("channels_app_auditentry"), pytest.raises(OperationalError):
            pump_until(pump, lambda: False)
        for _ in range(3):
            pump.round()
    assert Consumer.objects.get().state == "disabled"


# -- clocks that jump ----------------------------------------------------------------------------


def test_a_lease_ended_by_a_clock_step_does_not_stop_the_pump(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/flaky"), max_in_flight=5)
    first, second = threading.Event(), threading.Event()
    receiver.script("/flaky", [Reply(500, until=first), Reply(200, until=second)])
    publish(channel, b"x")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: len(receiver.requests()) == 1)
        with clock_ahead(monkeypatch, 60):
            pump_until(pump, lambda: len(receiver.requests()) == 2)
            second.set()
            pump_until(pump, lambda: len(pump.open) == 1)
            first.set()
            pump_until(pump, lambda: not pump.open)
            pump.round()
    assert Delivery.objects.get().state == "delivered"
    outcomes = dict(Attempt.objects.values_list("number", "outcome"))
    assert outcomes == {1: "lease_expired", 2: "delivered"}


def test_sweeps_continue_after_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        sweeps.run_due()
    before = clock.now()
    with clock_ahead(monkeypatch, -2 * max(sweep.every_s for sweep in sweeps.SWEEPS)):
        assert sweeps.run_due() == len(sweeps.SWEEPS)
        assert set(SweepRun.objects.filter(next_at__gt=before)) == set()


# -- rows that would never be claimed ------------------------------------------------------------


@pytest.mark.parametrize("state", ["retired", "paused", "disabled"])
def test_an_expired_lease_of_a_disabled_consumer_is_released(state: str) -> None:
    channel = make_channel()
    consumer = make_consumer(channel, NOWHERE)
    publish(channel, b"x")
    fanout.fan_out(10, slot=0)
    then = clock.now() - timedelta(minutes=5)
    Delivery.objects.update(due_at=then)
    claim.claim([ClaimRequest(consumer.id, 10, 1000, owner=1)], now=then, slot=0)
    consumer.state = Consumer.State(state)
    consumer.save()
    assert sweeps.lapsed() == 1
    assert sum(sweeps.retired()) == (state == "retired")
    delivery = Delivery.objects.get()
    assert delivery.state == ("cancelled" if state == "retired" else "queued")
    assert Attempt.objects.get().outcome == "lease_expired"
    assert Counter.totals() == pumping.recounted()


# -- large amounts -------------------------------------------------------------------------------


@pytest.mark.mariadb
def test_a_wide_fan_out_fits_into_the_servers_packets() -> None:
    channel = make_channel()
    Consumer.objects.bulk_create(
        Consumer(channel=channel, client_id=f"c{n}", url=NOWHERE) for n in range(100)
    )
    channel.save()
    publish(channel, *[b"x"] * 150, ordering_key="\N{TRUMPET}" * 255)
    made = fanout.fan_out(200, slot=0)
    assert made.more
    while made.more:
        made = fanout.fan_out(200, slot=0)
    assert Delivery.objects.count() == 100 * 150
    assert Counter.totals()["queued"] == 100 * 150


@pytest.mark.mariadb
def test_a_batch_of_the_largest_size_fits_into_the_servers_packets() -> None:
    view = view_of(make_channel(encrypt_bodies=False))
    body = b"\0" * (1 << 20)  # twice as long after quoting
    stored = accept.accept(view, None, [Publication(body=body) for _ in range(16)])
    assert len(stored) == Message.objects.count() == 16


def test_a_repeated_item_of_a_batch_returns_its_due_time() -> None:
    later = times.floor_ms(clock.now()) + timedelta(hours=1)
    item = Publication(body=b"x", idempotency_key="k", due_at=later)
    first, again = accept.accept(view_of(make_channel()), None, [item, item])
    assert (again.message_id, again.duplicate) == (first.message_id, True)
    assert again.due_at == first.due_at == later


@pytest.mark.mariadb
def test_batches_with_the_same_keys_store_each_once_whatever_their_order() -> None:
    view = view_of(make_channel())
    items = [Publication(body=b"x", idempotency_key=f"k{number}") for number in range(20)]
    kept: list[set[int]] = []

    def send(mine: list[Publication]) -> None:
        kept.append({result.message_id for result in accept.accept(view, None, mine)})

    at_once(*(partial(send, order) for order in (items, items[::-1], items, items[::-1])))
    assert len(kept) == 4
    assert kept[0] == kept[1] == kept[2] == kept[3]
    assert Message.objects.count() == IdempotencyRecord.objects.count() == 20


@pytest.mark.slow("fills packets of many megabytes")
@pytest.mark.mariadb
@pytest.mark.parametrize("count", [24, accept.SHARED_MESSAGES + 1])
def test_headers_that_outweigh_the_bodies_break_no_packet(count: int) -> None:
    view = view_of(make_channel())
    headers = {f"x-{number}": "\xff" * 4000 for number in range(32)}

    def send(items: list[Publication]) -> None:
        assert len(accept.accept(view, None, items)) == len(items)

    heavy, light = [Publication(body=b"x", headers=headers)] * count, [Publication(body=b"x")]
    at_once(*(partial(send, items) for items in (heavy, light, light, light)))
    assert Message.objects.count() == count + 3


@pytest.mark.trap("a clean-up that never finishes")
def test_retention_of_one_channel_does_not_delay_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = clock.now() - timedelta(days=60)
    for channel in (make_channel(), make_channel(), make_channel()):
        counts.make_messages(make_consumer(channel, NOWHERE), 40, accepted_at=old)
    monkeypatch.setattr(retention, "BATCH", 1)
    served = set[int]()
    for _ in range(40):
        if len(served) == 3:
            break
        before = set(Message.objects.values_list("id", "channel_id"))
        # The caller stops after the first step that deletes something.
        assert next(count for count in retention.prune(clock.now(), slot=0) if count) == 1
        ((_, channel_id),) = before - set(Message.objects.values_list("id", "channel_id"))
        served.add(channel_id)
    assert len(served) == 3


# -- counters ------------------------------------------------------------------------------------


@pytest.mark.mariadb
def test_a_fan_out_during_a_recount_is_counted_once() -> None:
    channel = make_channel()
    consumer = make_consumer(channel, NOWHERE)
    publish(channel, b"1")
    fanout.fan_out(10, slot=0)
    Counter.objects.filter(state="queued").update(count=5)
    publish(channel, b"2")
    threads: list[threading.Thread] = []

    def in_between(execute: Callable[..., Any], sql: str, *more: Any) -> Any:
        answer = execute(sql, *more)
        if not threads and "delivery_counter" in sql and "SELECT" in sql:
            threads.append(in_thread(lambda: fanout.fan_out(10, slot=3)))
            until(
                lambda: not threads[0].is_alive() or is_lock_awaited(),
                "it waits for our transaction, or is done",
            )
        return answer

    with connection.execute_wrapper(in_between):
        counters.recount(consumer.id)
    threads[0].join()
    assert Counter.totals() == pumping.recounted()


# -- resumed consumers ---------------------------------------------------------------------------


def test_failures_before_a_consumer_was_resumed_do_not_count(receiver: Receiver) -> None:
    channel = make_channel()
    consumer = make_consumer(
        channel, receiver.url("/status/500"), state_changed_at=clock.now() - timedelta(hours=1)
    )
    long_ago = clock.now() - timedelta(days=30)
    ConsumerHealth.objects.create(
        consumer=consumer, failing_since=long_ago, consecutive_failures=DISABLE_FAILURES
    )
    publish(channel, b"x")
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
        pump.round()
        assert Consumer.objects.get().state == "active"
        Consumer.objects.update(state_changed_at=clock.now() - timedelta(days=20))
        pump.assignment._saved.clear()
        publish(channel, b"x")
        pump_until(pump, lambda: Consumer.objects.get().state == "disabled")


@pytest.mark.trap("two lone failures disable a webhook")
def test_a_new_pump_forgets_failures_before_a_consumer_was_resumed(receiver: Receiver) -> None:
    channel = make_channel()
    now = clock.now()
    consumer = make_consumer(
        channel,
        receiver.url("/status/500"),
        max_attempts=1,
        state_changed_at=now - timedelta(days=10),
    )
    ConsumerHealth.objects.create(
        consumer=consumer,
        circuit="open",
        consecutive_failures=DISABLE_FAILURES,
        failing_since=now - timedelta(days=30),
        last_failure_at=now - timedelta(days=20),
    )
    publish(channel, b"x")
    with pumping.pumping() as pump:
        pump_until(
            pump,
            lambda: ConsumerHealth.objects.get().consecutive_failures != DISABLE_FAILURES,
        )
        pump.round()
    assert Consumer.objects.get().state == "active"
    health = ConsumerHealth.objects.get()
    assert (health.circuit, health.consecutive_failures) == ("closed", 1)


def test_a_pump_past_its_lifetime_ends_when_no_request_is_open(receiver: Receiver) -> None:
    channel = make_channel()
    may_answer = threading.Event()
    receiver.script("/held", [Reply(until=may_answer)])
    make_consumer(channel, receiver.url("/held"))
    publish(channel, b"x")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: bool(pump.open))
        past = time.monotonic() - 1.0
        assert not pump._may_leave(past)
        assert pump._may_leave(past - pump_module.SPARE_S)
        may_answer.set()
        pump_until(pump, all_finished)
        assert pump._may_leave(past)
        assert not pump._may_leave(time.monotonic() + 60.0)
