"""Pull consumers over the API: receive, acknowledge, reject, extend and release leases."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import DataError, IntegrityError

from channels_app.core import times
from channels_app.database import clock
from channels_app.ingest.concurrency import ConcurrencyLimit
from channels_app.models import Consumer, Message, MessageBody
from delivery.core.lifecycle import FREE_ATTEMPTS
from delivery.models import Attempt, Counter, Delivery, PullWorker
from delivery.pull import leasing, receiving
from delivery.pull.long_polling import long_polls
from delivery.queue import lease_rows, release, settle, waiting_messages
from tests.support import calling, clocks, doors
from tests.support.api import LeanClient
from tests.support.broker import wait_until
from tests.support.calling import Api, problem
from tests.support.counts import assert_counters_are_true
from tests.support.factories import ApiKeyFactory, ConsumerFactory, TeamFactory
from tests.support.pulling import Worker, bring, lapse, row_of, waiting
from tests.support.pumping import (
    make_channel,
    make_consumer,
    publish,
    pump_rounds,
    pump_until,
    pumping,
)
from tests.support.threads import in_thread

pytestmark = pytest.mark.django_db
SOON = timedelta(seconds=5)


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test on the fast path of the views, and those that are marked in other ways too."""
    door = getattr(request, "param", "short")
    if door != "long":
        monkeypatch.setattr(calling, "Client", LeanClient)
    if door == "grpc":
        monkeypatch.setattr(Worker, "receive", doors.receive_over_grpc)
        monkeypatch.setattr(Worker, "say", doors.settle_over_grpc)


both = pytest.mark.parametrize("way", ["short", "long"], indirect=True)
"""On both paths of REST's views."""
over_grpc = pytest.mark.parametrize("way", ["short", "grpc"], indirect=True)
every = pytest.mark.parametrize("way", ["short", "long", "grpc"], indirect=True)


def until(row: Delivery) -> timedelta:
    """Return the time until the delivery may be claimed."""
    assert row.due_at is not None
    return row.due_at - clock.now()


# -- receiving ---------------------------------------------------------------------------------


@pytest.mark.seed("S2-08")
@pytest.mark.seed("S2-61")
@every
def test_a_received_message_has_all_its_fields() -> None:
    consumer = waiting()
    (message_id,) = bring(
        consumer,
        b'{"n": 1}',
        content_type="application/json",
        event_type="order.created",
        ordering_key="customer-1",
        priority=7,
        headers={"X-Tenant": "acme"},
    )
    (one,) = Worker(consumer).receive(worker_id="w1", lease_s=60)
    row = row_of(consumer)
    assert row.message_id == message_id
    assert one["body"] == '{"n": 1}'
    assert one["content_type"] == "application/json"
    assert one["headers"] == {"X-Tenant": "acme"}
    assert (one["event_type"], one["ordering_key"]) == ("order.created", "customer-1")
    assert (one["priority"], one["attempt"], one["max_attempts"]) == (7, 1, 10)
    assert one["replay"] is False
    assert (row.state, row.attempt_count) == ("in_flight", 1)
    assert row.due_at is not None
    assert one["lease_expires_at"] == times.text(row.due_at)
    assert timedelta(seconds=50) < until(row) < timedelta(seconds=61)
    assert PullWorker.objects.get(id=row.lease_owner or 0).name == "w1"
    assert_counters_are_true()


@over_grpc
def test_binary_bodies_come_as_base64_and_large_ones_by_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "MAX_BYTES", 150_000)
    consumer = waiting(b"\xff\x00", b"a" * 100_000, b"b" * 100_000)
    binary, fits, other = Worker(consumer).receive()
    assert binary["body_base64"] == "/wA="
    assert fits["body"] == "a" * 100_000
    assert "body" not in other
    # A key that may receive may also fetch the bodies of its messages.
    path = other["body_url"].partition("/api/v1")[2]
    key = ApiKeyFactory.create(scopes=["receive"], producer=None)
    fetched = Api(key).get(path)
    assert fetched.content == b"b" * 100_000


@both
def test_unusual_line_separators_are_escaped() -> None:
    worker = Worker(waiting("a\u2028b\u2029c".encode()))
    answer = worker.api.post(f"{worker.path}/receive", {})
    assert rb"a\u2028b\u2029c" in answer.content
    assert answer.json()["messages"][0]["body"] == "a\u2028b\u2029c"


def test_a_receiving_key_reads_only_bodies_of_its_consumer() -> None:
    other = make_consumer(make_channel(), "http://127.0.0.1:9/", team=TeamFactory.create())
    (message_id,) = bring(other, b"theirs")
    body = Delivery.objects.get(message_id=message_id)
    name = Api(scopes=["admin"]).get(f"/deliveries/{body}").json()["message_id"]
    key = ApiKeyFactory.create(scopes=["receive"], producer=None)
    assert problem(Api(key).get(f"/messages/{name}/body"))[0] == 404


@over_grpc
def test_receive_returns_up_to_max_by_priority() -> None:
    consumer = waiting()
    for priority in (1, 9, 5):
        bring(consumer, b"x", b"y", priority=priority)
    worker = Worker(consumer)
    received = [worker.receive(max=most) for most in (1, 3, 100)]
    assert [[one["priority"] for one in got] for got in received] == [[9], [9, 5, 5], [1, 1]]


def arrived(consumer: Consumer, *bodies: str, **options: Any) -> None:
    """Accept messages without fanning them out."""
    publish(consumer.channel, *(body.encode() for body in bodies), **options)


@over_grpc
def test_receive_fans_out_accepted_messages() -> None:
    consumer = waiting(b"0")
    worker = Worker(consumer)
    arrived(consumer, "1", "2", "3")
    assert [one["body"] for one in worker.receive(max=1)] == ["0"], "enough, and no look for more"
    assert Message.objects.filter(state="accepted").count() == 3
    assert sorted(one["body"] for one in worker.receive(max=2)) == ["1", "2"]
    assert [one["body"] for one in worker.receive(max=2)] == ["3"]
    assert_counters_are_true()


def test_receive_does_not_fan_out_other_channels() -> None:
    consumer, other = waiting(), waiting()
    arrived(other, "x")
    assert Worker(consumer).receive() == []
    assert Message.objects.filter(state="accepted").count() == 1


@over_grpc
def test_fan_out_during_receive_keeps_the_order_of_keys() -> None:
    consumer = waiting(ordering=True)
    for body in ("A1", "A2", "B1"):
        arrived(consumer, body, ordering_key=body[0])
    worker = Worker(consumer)
    first = worker.receive()
    assert sorted(one["body"] for one in first) == ["A1", "B1"]
    worker.say("ack", *(one["lease"] for one in first))
    assert [one["body"] for one in worker.receive()] == ["A2"]


def test_receive_in_a_backlog_keeps_the_order_of_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_messages, "MAX_SEEN", 4)
    other = waiting()
    arrived(other, *"abcd")
    plain, ordered = waiting(), waiting(ordering=True)
    arrived(plain, "x")
    arrived(ordered, "A1", ordering_key="A")
    assert [one["body"] for one in Worker(plain).receive()] == ["x"]
    assert Worker(ordered).receive() == []
    assert Message.objects.filter(state="accepted").count() == 5


def test_scheduled_messages_are_not_received_early() -> None:
    consumer = waiting()
    bring(consumer, b"later", delay_ms=60_000)
    assert Worker(consumer).receive() == []


def test_receive_cancels_expired_messages_and_returns_others() -> None:
    consumer = waiting(b"first", b"second")
    oldest = Delivery.objects.order_by("id")[:1]
    Delivery.objects.filter(id__in=[row.id for row in oldest]).update(
        expires_at=clock.now() - timedelta(seconds=1)
    )
    (one,) = Worker(consumer).receive(max=1)
    assert one["body"] == "second"
    assert Counter.read([consumer.id])[consumer.id]["cancelled"] == 1


@pytest.mark.parametrize("what", ["consumer", "channel"])
def test_a_paused_pull_consumer_receives_nothing(what: str) -> None:
    consumer = waiting(b"x")
    row: Any = consumer if what == "consumer" else consumer.channel
    name, value = ("state", "paused") if what == "consumer" else ("paused", True)
    was = getattr(row, name)
    setattr(row, name, value)
    row.save()
    assert Worker(consumer).receive() == []
    assert Worker(consumer).receive(wait_s=0.2) == []
    setattr(row, name, was)
    row.save()
    assert len(Worker(consumer).receive()) == 1


@over_grpc
def test_an_undecryptable_body_makes_its_delivery_dead_and_blocks_no_others() -> None:
    consumer = waiting(b"broken", b"whole")
    broken = Delivery.objects.order_by("id").values_list("message_id", flat=True)[0]
    MessageBody.objects.filter(message_id=broken).update(data=b"\x01damaged")
    (one,) = Worker(consumer).receive()
    assert one["body"] == "whole"
    row = Delivery.objects.get(message_id=broken)
    assert (row.state, row.reason, row.outcome) == ("dead", "integrity_error", "integrity_error")
    assert_counters_are_true()


@both
def test_a_push_consumer_receives_nothing() -> None:
    consumer = make_consumer(make_channel(), "http://127.0.0.1:9/")
    answer = Api(scopes=["receive"]).post(f"{Worker(consumer).path}/receive", {})
    assert problem(answer) == (409, "not_pull", "")


def test_a_pump_leaves_pull_consumers_alone() -> None:
    consumer = waiting()
    with pumping() as pump:
        bring(consumer, b"x")
        pump_rounds(pump, 5)
        assert row_of(consumer).state == "queued"
        assert len(Worker(consumer).receive()) == 1


@both
def test_invalid_receive_options_are_refused() -> None:
    consumer = waiting(b"x")
    api, path = Api(scopes=["receive"]), f"{Worker(consumer).path}/receive"
    for name, value in (
        *(("max", 0), ("max", 101), ("wait_s", 21), ("lease_s", 0), ("lease_s", 43_201)),
        *(("worker_id", "x" * 65), ("worker_id", 5), ("auto_ack", 1), ("visibility_timeout", 5)),
    ):
        answer = api.post(path, {name: value})
        assert problem(answer) == (422, "invalid_fields", name)
    assert row_of(consumer).state == "queued"


# -- settling ----------------------------------------------------------------------------------


@pytest.mark.seed("S2-54")
@over_grpc
def test_an_acknowledged_message_is_delivered_and_not_received_again() -> None:
    consumer = waiting(b"x")
    worker = Worker(consumer)
    (one,) = worker.receive(worker_id="w1")
    assert worker.say("ack", one["lease"]) == ([one["lease"]], {})
    row = row_of(consumer)
    assert (row.state, row.reason, row.outcome) == ("delivered", "acknowledged", "delivered")
    assert (row.due_at, row.lease_owner, row.failure_count) == (None, None, 0)
    attempt = Attempt.objects.get(delivery=row)
    assert (attempt.number, attempt.outcome, attempt.worker) == (1, "delivered", "w1")
    assert attempt.started_at <= clock.now()
    lapse(consumer)
    assert worker.receive() == []
    assert_counters_are_true()


@pytest.mark.trap("two clocks compared as if one")
@pytest.mark.parametrize("what", ["ack", "nack", "release"])
@pytest.mark.parametrize("passed_s", [-5, 60 * 24 * 3600], ids=["negative", "60 days"])
@over_grpc
def test_a_lease_is_settled_whatever_the_time_since_it_began(
    monkeypatch: pytest.MonkeyPatch, what: str, passed_s: int
) -> None:
    """The process that settles estimates an earlier time than the one that received."""
    consumer = waiting(b"x")
    worker = Worker(consumer)
    (one,) = worker.receive()
    clocks.forward(monkeypatch)(passed_s)
    assert worker.say(what, one["lease"]) == ([one["lease"]], {})
    assert Attempt.objects.get().total_ms == min(max(0, passed_s * 1000), leasing.MAX_DURATION_MS)


@pytest.mark.trap("one bad row fails a whole group")
@pytest.mark.parametrize("error", [DataError, IntegrityError])
def test_a_lease_that_cannot_be_written_does_not_fail_the_others(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    consumer = waiting(b"x", b"y", b"z")
    worker = Worker(consumer)
    first, second, third = (one["lease"] for one in worker.receive())
    bad = Delivery.objects.order_by("id")[1]

    def close(results: Sequence[settle.Result], **more: Any) -> Sequence[settle.Result]:
        if any(result.claimed.id == bad.id for result in results):
            raise error("Out of range")
        return write(results, **more)

    write = settle.close
    monkeypatch.setattr(settle, "close", close)
    assert worker.say("ack", first, second, third) == ([first, third], {second: "expired"})
    assert "cannot be written" in caplog.text
    assert_counters_are_true()


@every
def test_an_acknowledgement_can_be_repeated() -> None:
    consumer = waiting(b"x", b"y", b"z")
    worker = Worker(consumer)
    a, b, c = (one["lease"] for one in worker.receive())
    for what, lease in (("ack", a), ("nack", b), ("release", c)):
        for _ in range(2):
            assert worker.say(what, lease) == ([lease], {})
    assert Attempt.objects.count() == 3
    # A different outcome comes too late.
    assert worker.say("nack", a) == ([], {a: "expired"})
    assert worker.say("extend", a) == ([], {a: "expired"})
    assert_counters_are_true()


@every
def test_each_lease_has_its_own_result() -> None:
    consumer = waiting(b"x", b"y", b"z")
    worker = Worker(consumer)
    mine, late, _ = (one["lease"] for one in worker.receive())
    second = Delivery.objects.order_by("id")[1]
    Delivery.objects.filter(id=second.id).update(due_at=clock.now() - timedelta(seconds=1))
    assert len(Worker(consumer).receive()) == 1  # another worker holds it now
    forged = mine[:-4] + ("aaaa" if not mine.endswith("aaaa") else "bbbb")
    done, failed = worker.say("ack", mine, late, forged, "lse_", "msg_1", "lse_é")
    assert done == [mine]
    assert failed == {
        late: "expired",
        **dict.fromkeys((forged, "lse_", "msg_1", "lse_é"), "unknown"),
    }
    assert_counters_are_true()


@pytest.mark.seed("S4-R4")
@over_grpc
def test_a_resuming_worker_first_gets_its_leases() -> None:
    consumer = waiting(b"1", b"2", b"3")
    worker = Worker(consumer)
    before = worker.receive(max=2, worker_id="w1", lease_s=60)
    assert Worker(consumer).receive(max=1, worker_id="w2", resume=True)[0]["body"] == "3"
    again = worker.receive(worker_id="w1", resume=True, lease_s=600)
    assert [one["id"] for one in again] == [one["id"] for one in before]
    assert [one["attempt"] for one in again] == [2, 2]
    rows = Delivery.objects.order_by("id")
    assert [row.attempt_count for row in rows] == [2, 2, 1]
    assert [row.failure_count for row in rows] == [0, 0, 0]
    shown = [times.text(row.due_at) for row in rows[:2] if row.due_at]
    assert shown == [one["lease_expires_at"] for one in again]
    assert until(rows[0]) > timedelta(seconds=590)
    leases = [one["lease"] for one in again]
    assert worker.say("ack", *leases)[0] == leases
    assert worker.receive(worker_id="w1", resume=True) == []
    assert_counters_are_true()


@pytest.mark.seed("S4-R4")
def test_resume_counts_leases_and_reclaims_expired_ones() -> None:
    consumer = waiting(b"1", b"2", b"3")
    worker = Worker(consumer)
    (first,) = worker.receive(max=1, worker_id="w1")
    both = worker.receive(max=2, worker_id="w1", resume=True)
    assert [one["body"] for one in both] == ["1", "2"]
    assert worker.receive(max=2, worker_id="w1", resume=True) != []
    lapse(consumer)
    taken = worker.receive(max=3, worker_id="w1", resume=True)
    assert sorted(one["body"] for one in taken) == ["1", "2", "3"]
    counts = Delivery.objects.order_by("id").values_list("attempt_count", flat=True)
    assert list(counts) == [4, 3, 1]
    assert worker.say("ack", first["lease"])[1] == {first["lease"]: "expired"}
    answer = worker.api.post(f"{worker.path}/receive", {"resume": True})
    assert problem(answer) == (422, "invalid_fields", "worker_id")
    assert_counters_are_true()


@pytest.mark.trap("a former worker that still settles")
@pytest.mark.parametrize("what", ["ack", "nack", "release", "extend"])
@over_grpc
def test_after_a_resume_only_the_new_leases_settle(what: str) -> None:
    """A process that only seemed dead has the same name as its replacement."""
    consumer = waiting(b"1")
    worker = Worker(consumer)
    (before,) = worker.receive(worker_id="w1")
    (again,) = worker.receive(worker_id="w1", resume=True)
    assert worker.say(what, before["lease"]) == ([], {before["lease"]: "expired"})
    assert row_of(consumer).state == "in_flight"
    assert worker.say("ack", again["lease"])[0] == [again["lease"]]
    outcomes = Attempt.objects.order_by("number").values_list("outcome", flat=True)
    assert list(outcomes) == ["lease_expired", "delivered"]
    assert_counters_are_true()


@pytest.mark.trap("a repeat numbered as the first attempt")
@over_grpc
def test_each_receive_has_its_own_attempt_number() -> None:
    """Lapsed, released or rejected: an attempt number is never handed out twice."""
    consumer = waiting(b"x", retry=[0])
    worker = Worker(consumer)
    numbers = []
    for what in ("lapse", "release", "nack", "lapse", "lapse"):
        (one,) = worker.receive()
        numbers.append(one["attempt"])
        if what == "lapse":
            lapse(consumer)
        else:
            worker.say(what, one["lease"], delay_s=0)
    assert numbers == [1, 2, 3, 4, 5]
    assert row_of(consumer).failure_count == 1


@pytest.mark.seed("S4-14")
@over_grpc
def test_a_message_with_an_expired_lease_is_received_again() -> None:
    consumer = waiting(b"x")
    first, second = Worker(consumer), Worker(consumer)
    (one,) = first.receive()
    assert second.receive() == []
    lapse(consumer)
    (again,) = second.receive()
    assert (again["id"], again["attempt"]) == (one["id"], 2)
    # The first worker has lost the lease and cannot change anything.
    for what in ("ack", "nack", "extend", "release"):
        assert first.say(what, one["lease"]) == ([], {one["lease"]: "expired"})
    row = row_of(consumer)
    assert (row.state, row.attempt_count, row.interruption_count) == ("in_flight", 2, 1)
    assert second.say("ack", again["lease"])[0] == [again["lease"]]
    outcomes = Attempt.objects.order_by("number").values_list("outcome", flat=True)
    assert list(outcomes) == ["lease_expired", "delivered"]
    assert row_of(consumer).failure_count == 0
    assert_counters_are_true()


@pytest.mark.parametrize("how", ["resume", "lapse"])
@over_grpc
def test_a_message_that_kills_every_worker_becomes_dead(how: str) -> None:
    consumer = waiting(b"x")
    worker = Worker(consumer)
    numbers = []
    while received := worker.receive(worker_id="w1", resume=how == "resume"):
        numbers += [one["attempt"] for one in received]
        if how == "lapse":
            lapse(consumer)
    assert numbers == list(range(1, FREE_ATTEMPTS + 2))
    row = row_of(consumer)
    assert (row.state, row.reason) == ("dead", "exhausted")
    assert_counters_are_true()


@pytest.mark.parametrize("values", [{}, {"lapsed_leases": "charged", "max_attempts": 1}])
def test_a_late_acknowledgement_counts_unless_another_worker_has_the_message(
    values: dict[str, Any],
) -> None:
    consumer = waiting(b"x", **values)
    worker = Worker(consumer)
    (one,) = worker.receive()
    lapse(consumer)
    assert worker.say("ack", one["lease"])[0] == [one["lease"]]
    assert row_of(consumer).state == "delivered"


def test_a_sweep_releases_expired_leases_only_of_disabled_consumers() -> None:
    consumer = waiting(b"x")
    worker = Worker(consumer)
    (one,) = worker.receive()
    lapse(consumer)
    assert release.release_lapsed(now=clock.now(), slot=0) == 0
    consumer.state = Consumer.State.PAUSED
    consumer.save()
    assert release.release_lapsed(now=clock.now(), slot=0) == 1
    assert worker.say("ack", one["lease"])[1] == {one["lease"]: "expired"}
    assert_counters_are_true()


@pytest.mark.parametrize("end", ["lapse", "release", "resume", "nack"])
@over_grpc
def test_charged_leases_count_receives_as_sqs_does(end: str) -> None:
    """After ``max_attempts`` receives without an acknowledgement it is dead, and never before."""
    consumer = waiting(b"x", lapsed_leases="charged", max_attempts=3, retry=[0])
    worker = Worker(consumer)
    for received in (1, 2, 3):
        (one,) = worker.receive(worker_id="w", resume=end == "resume")
        assert one["attempt"] == received
        assert row_of(consumer).failure_count == received - 1
        assert row_of(consumer).interruption_count == 0
        if end == "lapse":
            lapse(consumer)
        elif end != "resume":
            assert worker.say(end, one["lease"])[0] == [one["lease"]]
    assert worker.receive(worker_id="w", resume=end == "resume") == []
    row = row_of(consumer)
    assert (row.state, row.reason, row.failure_count) == ("dead", "exhausted", 3)
    assert row.outcome == {"release": "interrupted", "nack": "rejected"}.get(end, "lease_expired")
    assert row.finished_at is not None
    assert Attempt.objects.count() == 3
    assert_counters_are_true()


@pytest.mark.parametrize(("max_attempts", "state"), [(1, "dead"), (2, "queued")])
def test_a_sweep_charges_expired_leases_of_a_disabled_consumer(
    max_attempts: int, state: str
) -> None:
    consumer = waiting(b"x", lapsed_leases="charged", max_attempts=max_attempts)
    worker = Worker(consumer)
    worker.receive()
    lapse(consumer)
    consumer.state = Consumer.State.PAUSED
    consumer.save()
    assert release.release_lapsed(now=clock.now(), slot=0) == 1
    row = row_of(consumer)
    assert (row.state, row.failure_count, row.interruption_count) == (state, 1, 0)
    assert (row.finished_at is not None) == (state == "dead")
    assert_counters_are_true()


@pytest.mark.seed("S2-58")
@over_grpc
def test_nacked_messages_are_redelivered_up_to_max_attempts() -> None:
    consumer = waiting(b"x", retry=[60, 600], max_attempts=3)
    worker = Worker(consumer)
    for attempt, wait_s in ((1, 60), (2, 600), (3, None)):
        (one,) = worker.receive()
        assert one["attempt"] == attempt
        assert worker.say("nack", one["lease"], error="no such customer")[0] == [one["lease"]]
        row = row_of(consumer)
        assert (row.failure_count, row.outcome) == (attempt, "rejected")
        if wait_s:
            wait = until(row)
            assert timedelta(seconds=wait_s * 0.5) < wait < timedelta(seconds=wait_s * 1.5)
            assert (row.state, row.reason) == ("queued", "retry")
            Delivery.objects.update(due_at=clock.now() - timedelta(seconds=1))
    assert (row.state, row.reason, row.due_at) == ("dead", "exhausted", None)
    attempts = Attempt.objects.order_by("number")
    assert [(one.number, one.outcome, one.answer.error) for one in attempts] == [
        (n, "rejected", "no such customer") for n in (1, 2, 3)
    ]
    assert_counters_are_true()


def test_the_error_of_a_nack_may_have_several_lines() -> None:
    worker = Worker(waiting(b"x", max_attempts=5))
    (one,) = worker.receive()
    said = worker.say("nack", one["lease"], error="Traceback:\n\tfile.py \x1b[31mred\udc80")
    assert said == ([one["lease"]], {})
    assert Attempt.objects.get().answer.error == "Traceback:  file.py  [31mred "


@over_grpc
def test_a_final_nack_is_dead_at_once_and_idempotent() -> None:
    consumer = waiting(b"x", max_attempts=5)
    worker = Worker(consumer)
    (one,) = worker.receive()
    for _ in range(2):
        said = worker.say("nack", one["lease"], final=True, delay_s=5, error="no such customer")
        assert said == ([one["lease"]], {})
    row = row_of(consumer)
    assert (row.state, row.reason, row.outcome) == ("dead", "permanent_failure", "rejected")
    assert (row.failure_count, row.due_at) == (1, None)
    assert_counters_are_true()


@pytest.mark.parametrize(("delay_s", "at_once"), [(0, True), (300, False)])
@over_grpc
def test_a_nack_may_set_a_delay(delay_s: int, at_once: bool) -> None:
    consumer = waiting(b"x")
    worker = Worker(consumer)
    (one,) = worker.receive()
    worker.say("nack", one["lease"], delay_s=delay_s)
    row = row_of(consumer)
    wait = until(row)
    assert timedelta(seconds=delay_s) - SOON < wait <= timedelta(seconds=delay_s)
    assert len(worker.receive()) == at_once
    assert row.failure_count == 1


@pytest.mark.seed("S4-R3")
@pytest.mark.parametrize("delay_s", [None, 300])
@over_grpc
def test_a_released_message_is_not_charged(delay_s: int | None) -> None:
    consumer = waiting(b"x", max_attempts=1)
    worker = Worker(consumer)
    (one,) = worker.receive()
    more = {} if delay_s is None else {"delay_s": delay_s}
    assert worker.say("release", one["lease"], **more)[0] == [one["lease"]]
    row = row_of(consumer)
    assert (row.state, row.reason, row.failure_count) == ("queued", "interrupted", 0)
    assert len(Worker(consumer).receive()) == (delay_s is None)
    assert_counters_are_true()


@over_grpc
def test_a_lease_can_be_extended() -> None:
    consumer = waiting(b"x")
    worker = Worker(consumer)
    (one,) = worker.receive(lease_s=1)
    lapse(consumer)
    assert worker.say("extend", one["lease"], lease_s=600)[0] == [one["lease"]]
    assert worker.receive() == []
    row = row_of(consumer)
    assert timedelta(seconds=590) < until(row) <= timedelta(seconds=600)
    assert worker.say("ack", one["lease"])[0] == [one["lease"]]


@over_grpc
def test_a_lease_cannot_be_extended_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = waiting(b"x")
    worker = Worker(consumer)
    (one,) = worker.receive()
    monkeypatch.setattr(leasing, "MAX_LEASE", timedelta(seconds=60))
    assert worker.say("extend", one["lease"], lease_s=600)[0] == [one["lease"]]
    assert until(row_of(consumer)) <= timedelta(seconds=60)
    monkeypatch.setattr(leasing, "MAX_LEASE", timedelta(seconds=-1))
    assert worker.say("extend", one["lease"], lease_s=600)[1] == {one["lease"]: "too_long"}


def test_a_removed_consumers_lease_is_unknown() -> None:
    consumer = waiting(b"x")
    worker = Worker(consumer)
    (one,) = worker.receive()
    consumer.state = Consumer.State.RETIRED
    consumer.save()
    assert worker.say("ack", one["lease"])[1] == {one["lease"]: "unknown"}


@over_grpc
def test_leases_of_several_consumers_and_workers_are_settled_together() -> None:
    channel = make_channel()
    consumers = [waiting(channel=channel) for _ in range(2)]
    bring(consumers[0], b"x", b"y")
    found = [
        Worker(consumer).receive(max=1, worker_id=name)[0]["lease"]
        for consumer in consumers
        for name in ("a", "b")
    ]
    done, failed = Worker(consumers[0]).say("ack", *found)
    assert (sorted(done), failed) == (sorted(found), {})
    assert sorted(Attempt.objects.values_list("worker", flat=True)) == ["a", "a", "b", "b"]
    assert_counters_are_true()


@pytest.mark.parametrize("auto_ack", [True, False])
@over_grpc
def test_an_ordered_pull_consumer_receives_a_key_one_by_one(auto_ack: bool) -> None:
    consumer = waiting(ordering=True)
    bring(consumer, b"1", b"2", b"3", ordering_key="room")
    worker, got = Worker(consumer), []
    while found := worker.receive(auto_ack=auto_ack):
        (one,) = found
        got.append(one["body"])
        if not auto_ack:
            assert worker.receive() == []
            assert worker.say("ack", one["lease"])[0] == [one["lease"]]
    assert got == ["1", "2", "3"]
    assert_counters_are_true()


@pytest.mark.seed("S2-57")
@over_grpc
def test_auto_ack_settles_before_the_response() -> None:
    consumer = waiting(b"x")
    worker = Worker(consumer)
    (one,) = worker.receive(auto_ack=True)
    assert (one["lease"], one["lease_expires_at"]) == (None, None)
    row = row_of(consumer)
    assert (row.state, row.reason) == ("delivered", "acknowledged")
    lapse(consumer)
    assert worker.receive(auto_ack=True) == []
    assert_counters_are_true()


# -- changes between push and pull -------------------------------------------------------------


def test_waiting_messages_follow_a_change_of_mode(receiver: Any) -> None:
    """Nothing is lost or delivered twice; an open lease can still be settled."""
    channel = make_channel()
    consumer = make_consumer(channel, receiver.url("/ok"))
    consumer.state = Consumer.State.PAUSED
    consumer.save()
    bring(consumer, b"1", b"2", b"3")
    api = Api(scopes=["admin"])
    path = Worker(consumer).path
    assert api.patch(path, {"mode": "pull"}).status_code == 200
    assert api.post(f"{path}/resume").status_code == 200
    worker = Worker(consumer)
    held, lost = worker.receive(max=2)
    url = receiver.url("/ok")
    assert api.patch(path, {"mode": "push", "url": url}).status_code == 200
    assert problem(worker.api.post(f"{path}/receive", {}))[1] == "not_pull"
    with pumping() as pump:
        pump_until(pump, lambda: Counter.read([consumer.id])[consumer.id]["delivered"] == 1)
        # A leased delivery is the worker's until its lease ends.
        assert worker.say("ack", held["lease"])[0] == [held["lease"]]
        lapse(consumer)
        pump_until(pump, lambda: Counter.read([consumer.id])[consumer.id]["delivered"] == 3)
    assert worker.say("ack", lost["lease"])[1] == {lost["lease"]: "expired"}
    assert sorted(request.body for request in receiver.requests("/ok")) == [b"2", b"3"]
    assert_counters_are_true()


def test_deliveries_claimed_by_a_pump_are_not_received(receiver: Any) -> None:
    consumer = make_consumer(make_channel(), receiver.url("/slow?ms=300"))
    with pumping() as pump:
        bring(consumer, b"x")
        pump_until(pump, lambda: len(receiver.requests()) == 1)
        consumer.refresh_from_db()
        consumer.mode, consumer.url = Consumer.Mode.PULL, ""
        consumer.save()
        assert Worker(consumer).receive() == []
        pump.assignment.refresh()
        pump_until(pump, lambda: row_of(consumer).state == "delivered")
    assert len(receiver.requests()) == 1
    assert_counters_are_true()


# -- long polling ------------------------------------------------------------------------------


@both
def test_a_receive_call_over_the_limit_gets_retry_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "polls", ConcurrencyLimit(0))
    consumer = waiting()
    path = f"{Worker(consumer).path}/receive"
    answer = Api(scopes=["receive"]).post(path, {"wait_s": 5})
    assert problem(answer) == (503, "too_many_polls", "")
    assert int(answer.headers["Retry-After"]) >= 1
    assert Worker(consumer).receive() == []  # receiving without waiting still works
    bring(consumer, b"x")
    assert len(Worker(consumer).receive(wait_s=5)) == 1


def test_a_long_poll_place_is_released() -> None:
    consumer = waiting()
    for _ in range(3):
        assert Worker(consumer).receive(wait_s=0.01) == []
    assert long_polls.waiting() == {}


@pytest.mark.django_db(transaction=True)
@pytest.mark.seed("S2-61")
def test_a_long_poll_returns_a_new_message() -> None:
    consumer = waiting()
    worker = Worker(consumer)
    received: list[dict[str, Any]] = []

    thread = in_thread(lambda: received.extend(worker.receive(wait_s=20)))
    bring(consumer, b"x")
    thread.join(15)
    assert not thread.is_alive()
    assert [one["body"] for one in received] == ["x"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("method", "change"),
    [("DELETE", None), ("PATCH", {"mode": "push", "url": "http://127.0.0.1:9/"})],
)
def test_a_long_poll_that_cannot_succeed_releases_its_place(method: str, change: Any) -> None:
    consumer = waiting()
    worker = Worker(consumer)
    received: list[Any] = []

    thread = in_thread(lambda: received.append(worker.receive(wait_s=20)))
    wait_until(lambda: bool(long_polls.waiting()), 60, "it does not wait")
    assert Api(scopes=["admin"]).call(method, worker.path, change).status_code < 300
    thread.join(15)
    assert not thread.is_alive()
    assert received == [[]]


@pytest.mark.django_db(transaction=True)
@pytest.mark.seed("S2-04")
def test_workers_of_one_consumer_share_its_messages() -> None:
    """Each message goes to exactly one of the workers."""
    consumer = waiting(*[str(n).encode() for n in range(40)])
    got: list[list[str]] = [[] for _ in range(4)]

    def work(mine: list[str]) -> None:
        worker = Worker(consumer)
        while found := worker.receive(max=3):
            mine.extend(one["body"] for one in found)
            done, failed = worker.say("ack", *(one["lease"] for one in found))
            assert (len(done), failed) == (len(found), {})

    threads = [in_thread(partial(work, mine)) for mine in got]
    for thread in threads:
        thread.join(60)
    # A worker that finds only locked rows stops early: receive the rest here.
    work(got[0])
    assert sorted(int(body) for mine in got for body in mine) == list(range(40))
    assert Counter.read([consumer.id])[consumer.id]["delivered"] == 40
    assert_counters_are_true()


def test_inactive_workers_are_deleted() -> None:
    consumer = ConsumerFactory.create(pull=True)
    now: datetime = clock.now()
    lease_rows.note_worker(-1, consumer.id, "old", now - lease_rows.RETENTION - timedelta(hours=1))
    lease_rows.note_worker(-2, consumer.id, "new", now)
    assert lease_rows.delete_workers(now) == 1
    assert [worker.name for worker in PullWorker.objects.all()] == ["new"]
