"""Scheduled messages sent by a real pump: at their current time, never at a former one."""

import time
from collections import Counter as Tally
from datetime import UTC, datetime, timedelta

import pytest

from channels_app.core import times
from channels_app.core.errors import Conflict
from channels_app.database import clock
from channels_app.ingest import accept
from channels_app.ingest.accept import Publication
from delivery.models import Attempt, Delivery
from delivery.pump.consumer_queue import AHEAD, LEAD
from delivery.pump.pump import Pump
from delivery.queue import cancel, claim, fanout, release, reschedule
from delivery.queue.claim import ClaimRequest
from tests.support import pumping
from tests.support.counts import assert_counters_are_true, make_deliveries
from tests.support.principals import acting
from tests.support.pumping import (
    all_finished,
    make_channel,
    make_consumer,
    publish,
    pump_until,
    view_of,
)
from tests.support.receiver import Receiver
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
ASKER = acting("test")
HOUR = timedelta(hours=1)


def run(pump: Pump) -> None:
    """Run rounds as the pump itself does, with its own waits, until all is finished."""

    def is_finished() -> bool:
        pump.round()
        return all_finished()

    until(is_finished, "all are finished", 120.0)


@pytest.mark.seed("S4-01", "S4-03", "S4-17", "S4-47", "S2-54")
def test_a_scheduled_message_is_sent_on_time_and_never_early(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    start = datetime.now(UTC) + timedelta(milliseconds=500)
    delays = [(place * 37) % 50 for place in range(50)]
    due = [start + timedelta(milliseconds=20 * delay) for delay in delays]
    items = [
        Publication(body=str(delay).encode(), due_at=at)
        for delay, at in zip(delays, due, strict=True)
    ]
    stored = accept.accept(view_of(channel), None, items)

    with pumping.pumping() as pump:
        run(pump)

    attempts = Attempt.objects.select_related("delivery").order_by("started_at")
    began = {it.delivery.message_id: it.started_at for it in attempts}
    for result, at in zip(stored, due, strict=True):
        assert began[result.message_id] >= at
    place_of = {result.message_id: delay for result, delay in zip(stored, delays, strict=True)}
    assert [place_of[message_id] for message_id in began] == sorted(delays)
    assert sorted(int(request.body) for request in receiver.requests()) == sorted(delays)


@pytest.mark.seed("S4-08", "S4-10")
def test_a_pump_caches_the_next_due_time(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    now = datetime.now(UTC)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: not pump.assignment._unexamined)
        for delay_ms in (300, 600, 900):
            accept.accept(
                view_of(channel),
                None,
                [Publication(body=b"x", due_at=now + timedelta(milliseconds=delay_ms))],
            )
            pump.accepted_hint = True
        pump.round()
        # From here on the pump relies on the due times that it knows, without polling.
        monkeypatch.setattr(pump.assignment, "discover", lambda poll_s: 3600.0)
        pump.next_poll = time.monotonic() + 3600.0
        run(pump)
    assert len(receiver.requests()) == 3


@pytest.mark.seed("S4-08", "S4-R10")
def test_a_delivery_claimed_early_is_sent_by_no_other_pump(receiver: Receiver) -> None:
    channel = make_channel()
    consumer = make_consumer(channel, receiver.url("/ok"))
    at = times.ceil_ms(clock.now() + timedelta(milliseconds=300))
    publish(channel, b"x", due_at=at)
    fanout.fan_out(10, 0)
    wants, others = (
        [ClaimRequest(consumer.id, 10, 5000, owner=1)],
        [ClaimRequest(consumer.id, 10, 5000, owner=2)],
    )

    early = claim.claim(wants, now=at - 2 * AHEAD, slot=0, ahead=AHEAD)
    assert early.rows == []
    held = claim.claim(wants, now=at - AHEAD / 2, slot=0, ahead=AHEAD)
    assert [row.due_at for row in held.rows] == [at]
    # A lease that is about to end has not ended yet.
    lease_end = held.rows[0].lease_until
    for now, count in ((lease_end - AHEAD / 2, 0), (lease_end, 1)):
        assert len(claim.claim(others, now=now, slot=0, ahead=AHEAD).rows) == count
    assert_counters_are_true()


@pytest.mark.seed("S4-17")
@pytest.mark.parametrize("how", ["drained", "killed"])
def test_a_delivery_released_early_keeps_its_due_time(
    how: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    instants = [clock.now()]
    monkeypatch.setattr(clock, "now", lambda: instants[-1])
    at = instants[0] + timedelta(seconds=1)
    publish(channel, b"x", due_at=at)
    fanout.fan_out(10, 0)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: not pump.assignment._unexamined)
        assert not pump.claimed
        instants.append(at - LEAD / 2)
        pump_until(pump, lambda: bool(pump.claimed))
        if how == "killed":
            assert release.release_owner(pump.held.generation, now=clock.now(), slot=0) == 1
            pump.claimed.clear()
        else:
            pump.drain(0.0)
    row = Delivery.objects.get()
    assert row.state == "queued"
    assert row.due_at is not None
    assert row.due_at >= at
    assert_counters_are_true()


@pytest.mark.slow("waits for the old time to pass")
@pytest.mark.seed("S4-23", "S4-R5")
def test_a_moved_or_cancelled_message_is_never_sent_at_its_old_time(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/ok"))
    start = clock.now() + timedelta(seconds=1)
    names = [b"%d" % place for place in range(30)]
    ids = publish(channel, *names, due_at=start)
    moved_to = start + timedelta(seconds=1)
    kept: set[bytes] = set()
    with pumping.pumping() as pump:
        pump_until(pump, lambda: Delivery.objects.count() == 30)
        for place, (message_id, name) in enumerate(zip(ids, names, strict=True)):
            with monkeypatch.context() as patch:
                patch.setattr(pump, "_max_wait_s", lambda: 0.0)
                pump.round()
            now = clock.now()
            try:
                if place % 3 == 0:
                    reschedule.reschedule(message_id, ASKER, now=now, due_at=moved_to)
                elif place % 3 == 1:
                    done = cancel.cancel_message(message_id, ASKER, now=now, unless_sent=True)
                    if done.cancelled_count:
                        continue
            except Conflict:
                pass  # too late: it is already being sent
            kept.add(name)
        run(pump)
    heard = Tally(request.body for request in receiver.requests())
    assert heard.keys() == kept
    for attempt in Attempt.objects.select_related("delivery__message"):
        assert attempt.started_at >= attempt.delivery.message.due_at
    assert_counters_are_true()


@pytest.mark.seed("S4-22")
def test_a_claim_reads_no_more_with_a_long_future() -> None:
    channel = make_channel()
    consumer = make_consumer(channel, "http://127.0.0.1:9/")
    now = clock.now()
    queued = {"state": "queued", "reason": "accepted", "finished_at": None}
    make_deliveries(consumer, 200, due_at=now + HOUR, **queued)
    make_deliveries(consumer, 3, due_at=now, **queued)

    wants = [ClaimRequest(consumer.id, 100, 1000, owner=1)]
    sql, values = claim.candidates_sql(wants, now + AHEAD)
    assert sql.count("LIMIT 101") == 10
    taken = claim.claim(wants, now=now, slot=0, ahead=AHEAD)
    assert len(taken.rows) == 3
    assert taken.drained == {consumer.id}
    assert len(values) == 10
