"""Acknowledgement by a later call or by a timeout, over real HTTP (S3-05, S3-27, S3-38)."""

import itertools
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import REGISTRY

from channels_app.database import clock
from channels_app.models import Consumer
from delivery.acks import callbacks
from delivery.core import acks
from delivery.core.lifecycle import ClaimedDelivery
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Delivery, OrderingKey, PendingAck
from delivery.queue import fanout, release, settle
from delivery.queue.settle import Result
from delivery.transport import payloads
from tests.support import clocks, pumping
from tests.support.api import LeanClient
from tests.support.ordering import check, end, say, take
from tests.support.pumping import all_finished, make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver, Reply, Request

pytestmark = pytest.mark.django_db(transaction=True)
NOWHERE = "http://127.0.0.1:9/"
LONG = {"mode": "callback", "timeout_ms": 60_000, "on_timeout": "retry"}


def short(on_timeout: str) -> dict[str, Any]:
    return {"mode": "callback", "timeout_ms": 50, "on_timeout": on_timeout}


def say_it(request: Request, status: str | None = None) -> str:
    """Call back as the consumer; return the result that the broker reports."""
    url = request.header("Hookstation-Ack-Url")
    assert url is not None
    path = urlsplit(url).path
    body = {"status": status} if status else None
    answer = LeanClient().post(path, json.dumps(body) if body else b"", "application/json")
    assert answer.status_code == 200, answer.content
    return str(answer.json()["result"])


def are(*states: str) -> Callable[[], bool]:
    """Return a check that the deliveries, oldest message first, are in these states."""
    rows = Delivery.objects.order_by("message_id")
    return lambda: list(rows.values_list("state", flat=True)) == list(states)


def heard_by(receiver: Receiver) -> list[str]:
    return [request.body.decode() for request in receiver.requests()]


@pytest.mark.seed("S3-01", "S3-04", "S3-06")
def test_the_next_delivery_of_a_key_starts_after_the_acknowledgement(receiver: Receiver) -> None:
    consumer = make_consumer(make_channel(), receiver.url("/ok"), ordering=True, ack=LONG)
    with pumping.pumping() as pump:
        say(consumer, "A1 A2 B1")
        pump_until(pump, are("awaiting_ack", "queued", "awaiting_ack"))
        assert sorted(heard_by(receiver)) == ["A1", "B1"]
        first = next(one for one in receiver.requests() if one.body == b"A1")
        assert say_it(first) == "on_time"
        pump_until(pump, are("delivered", "awaiting_ack", "awaiting_ack"))
        assert heard_by(receiver)[-1] == "A2"
        assert say_it(first) == "double"
        assert are("delivered", "awaiting_ack", "awaiting_ack")(), "it lets nobody else go"
        for one in receiver.requests():
            if one.body != b"A1":
                say_it(one, "ok")
    assert set(Delivery.objects.values_list("reason", flat=True)) == {"acknowledged"}
    assert not OrderingKey.objects.exists()
    check()


@pytest.mark.seed("S3-15")
def test_measured_latency_ends_with_the_acknowledgement(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"hookstation_delivery_latency_seconds_{part}" for part in ("count", "sum")]
    before = [REGISTRY.get_sample_value(name) or 0.0 for name in names]
    consumer = make_consumer(make_channel(), receiver.url("/ok"), ack=LONG)
    with pumping.pumping() as pump:
        publish(consumer.channel, b"{}")
        pump_until(pump, are("awaiting_ack"))
        assert REGISTRY.get_sample_value(names[0]) == before[0], "a 2xx is not the end"
        clocks.forward(monkeypatch)(30.0)
        say_it(receiver.requests()[0])
        pump_until(pump, all_finished)
    count, seconds = (REGISTRY.get_sample_value(name) or 0.0 for name in names)
    assert count == before[0] + 1
    assert seconds - before[1] >= 29.0, "clocks are corrected by milliseconds"


@pytest.mark.seed("S3-05")
@pytest.mark.parametrize(
    ("on_timeout", "times", "state", "reason"),
    [
        ("proceed", 1, "delivered", "ack_timeout"),
        ("dead", 1, "dead", "ack_timeout"),
        ("retry", 3, "dead", "exhausted"),
    ],
)
def test_a_missing_acknowledgement_follows_the_policy(
    receiver: Receiver, on_timeout: str, times: int, state: str, reason: str
) -> None:
    ack = short(on_timeout)
    consumer = make_consumer(make_channel(), receiver.url("/ok"), ordering=True, ack=ack)
    with pumping.pumping() as pump:
        say(consumer, "A1 A2")
        pump_until(pump, all_finished)
    assert heard_by(receiver) == ["A1"] * times + ["A2"] * times
    assert list(Delivery.objects.values_list("state", "reason")) == [(state, reason)] * 2
    first, second, *_ = receiver.requests()
    assert second.at - first.at >= 0.04, "clocks are corrected by milliseconds"
    assert say_it(first) == "late"
    check()


@pytest.mark.seed("S3-14", "S3-35")
def test_an_unacknowledged_delivery_is_sent_again(receiver: Receiver) -> None:
    consumer = make_consumer(
        make_channel(), receiver.url("/ok"), ordering=True, ack=short("retry"), max_attempts=20
    )
    with pumping.pumping() as pump:
        say(consumer, "A1 A2")
        pump_until(pump, lambda: len(receiver.requests()) >= 3)
        assert set(heard_by(receiver)) == {"A1"}
        assert len({one.header("webhook-id") for one in receiver.requests()}) == 1
        assert say_it(receiver.requests()[0]) in {"on_time", "early"}
        pump_until(pump, lambda: heard_by(receiver)[-1] == "A2")
        assert Delivery.objects.order_by("message_id")[0].reason == "acknowledged"
    check()


@pytest.mark.seed("S4-26")
def test_a_consumer_reports_progress_failure_and_success(receiver: Receiver) -> None:
    make_consumer(channel := make_channel(), receiver.url("/accepted"), ack=LONG)
    receiver.script("/accepted", [Reply(202)] * 2)
    with pumping.pumping() as pump:
        publish(channel, b"x")
        pump_until(pump, are("awaiting_ack"))
        (request,) = receiver.requests()
        ends = []
        for _ in range(2):
            assert say_it(request, "working") == "on_time"
            ends.append(Delivery.objects.get().due_at)
        assert ends == sorted(ends, key=lambda end: end or clock.now())
        assert ends[0] != ends[1]
        assert say_it(request, "failed") == "on_time"
        pump_until(pump, lambda: len(receiver.requests()) == 2 and are("awaiting_ack")())
        assert say_it(receiver.requests()[1], "ok") == "on_time"
    row = Delivery.objects.get()
    assert (row.state, row.reason) == ("delivered", "acknowledged")
    assert (row.failure_count, row.attempt_count) == (1, 2)
    check()


@pytest.mark.seed("S3-27", "S3-31")
def test_time_alone_paces_a_key(receiver: Receiver) -> None:
    consumer = make_consumer(
        make_channel(), receiver.url("/ok"), ordering=True, ack={"mode": "timer", "delay_ms": 100}
    )
    with pumping.pumping() as pump:
        say(consumer, "A1 A2 A3 B1")
        pump_until(pump, all_finished)
    of_a = [one for one in receiver.requests() if one.body.startswith(b"A")]
    assert [one.body for one in of_a] == [b"A1", b"A2", b"A3"]
    for one, following in itertools.pairwise(of_a):
        assert following.at - one.at >= 0.08, "clocks are corrected by milliseconds"
    assert all(one.header("Hookstation-Ack-Url") is None for one in of_a)
    check()


# -- early, late and repeated acknowledgements --------------------------------------------------


@pytest.fixture
def consumer() -> Consumer:
    return make_consumer(make_channel(), NOWHERE, ordering=True, ack=LONG)


@pytest.fixture
def now() -> datetime:
    return clock.now() + timedelta(seconds=5)


def taken(consumer: Consumer, now: datetime) -> ClaimedDelivery:
    say(consumer, "A1 A2")
    while fanout.fan_out(100, slot=0).message_count:
        pass
    (row,) = take(consumer, now)
    return row


def answered(row: ClaimedDelivery, now: datetime) -> None:
    """Record a 2xx response."""
    mode = acks.mode_of(LONG)
    assert mode is not None
    result = Result(row, mode.answered, Outcome.DELIVERED, now, "test")
    assert settle.settle([result], now=now, slot=0) == 1


@pytest.mark.seed("S3-38")
@pytest.mark.parametrize(
    ("ok", "is_answered", "state", "reason", "failures"),
    [
        (True, True, "delivered", "acknowledged", 0),
        (True, False, "delivered", "acknowledged", 1),
        (False, True, "queued", "retry", 1),
    ],
)
def test_an_acknowledgement_before_the_end_of_the_attempt_decides(
    consumer: Consumer,
    now: datetime,
    ok: bool,
    is_answered: bool,
    state: str,
    reason: str,
    failures: int,
) -> None:
    row = taken(consumer, now)
    assert callbacks.acknowledge(row.id, ok=ok, now=now).result == "early"
    assert PendingAck.objects.count() == 1
    assert not take(consumer, now)
    assert callbacks.acknowledge(row.id, ok=not ok, now=now).result == "double"
    if is_answered:
        answered(row, now)
    else:
        end([row], "retry", now)
    done = Delivery.objects.get(id=row.id)
    assert (done.state, done.reason, done.failure_count) == (state, reason, failures)
    assert (done.due_at is None) == ok
    assert not PendingAck.objects.exists()
    assert [one.event_type for one in take(consumer, now)] == (["A2"] if ok else [])
    check()


def killed(row: ClaimedDelivery, how: str, now: datetime) -> datetime:
    """Let the pump die; return the time of the next claim."""
    if how == "released":
        assert release.release_owner(1, now=now, slot=0) == 1
        return now
    return row.lease_until


@pytest.mark.trap("acknowledged, and sent again")
@pytest.mark.parametrize("how", ["released", "lapsed"])
def test_an_acknowledgement_before_a_crash_prevents_a_retry(
    consumer: Consumer, now: datetime, how: str
) -> None:
    row = taken(consumer, now)
    callbacks.acknowledge(row.id, ok=True, now=now)
    later = killed(row, how, now)
    # The claim that ends a lapsed lease also finds out that the next message may go.
    went = take(consumer, later) + take(consumer, later)
    assert [one.event_type for one in went] == ["A2"]
    done = Delivery.objects.get(id=row.id)
    assert (done.state, done.reason, done.attempt_count) == ("delivered", "acknowledged", 1)
    outcome = "interrupted" if how == "released" else "lease_expired"
    assert Attempt.objects.get(delivery_id=row.id).outcome == outcome
    assert not PendingAck.objects.exists()
    check()


@pytest.mark.parametrize("how", ["released", "lapsed"])
def test_a_failure_reported_before_a_crash_is_a_failed_attempt(
    consumer: Consumer, now: datetime, how: str
) -> None:
    row = taken(consumer, now)
    callbacks.acknowledge(row.id, ok=False, now=now)
    later = killed(row, how, now)
    assert take(consumer, later) == []
    failed = Delivery.objects.get(id=row.id)
    assert (failed.reason, failed.failure_count, failed.interruption_count) == ("retry", 1, 0)
    (again,) = take(consumer, later + timedelta(seconds=1))
    assert payloads.stamp(again).attempt == 2
    check()


@pytest.mark.parametrize("how", ["released", "lapsed"])
def test_an_acknowledgement_after_a_crash_prevents_a_retry(
    consumer: Consumer, now: datetime, how: str
) -> None:
    row = taken(consumer, now)
    if how == "released":
        release.release_owner(1, now=now, slot=0)
    else:
        Consumer.objects.filter(id=consumer.id).update(state="paused")
        release.release_lapsed(now=row.lease_until, slot=0)
    assert callbacks.acknowledge(row.id, ok=False, now=now).result == "late"
    assert callbacks.acknowledge(row.id, ok=True, now=now).result == "on_time"
    assert Delivery.objects.get(id=row.id).state == "delivered"
    assert [one.event_type for one in take(consumer, row.lease_until)] == ["A2"]
    check()


@pytest.mark.trap("a repeat numbered as the first attempt")
@pytest.mark.parametrize("how", ["released", "lapsed"])
def test_a_possibly_sent_attempt_is_followed_by_the_next_number(
    consumer: Consumer, now: datetime, how: str
) -> None:
    row = taken(consumer, now)
    (again,) = take(consumer, killed(row, how, now))
    assert (again.id, payloads.stamp(row).attempt, payloads.stamp(again).attempt) == (row.id, 1, 2)


@pytest.mark.seed("S3-38")
def test_a_late_acknowledgement_does_not_release_a_later_delivery(
    consumer: Consumer, now: datetime
) -> None:
    say(consumer, "A0")
    row = taken(consumer, now)
    end([row], "delivered", now)
    (second,) = take(consumer, now)
    answered(second, now)
    late = callbacks.acknowledge(row.id, ok=True, now=now)
    assert late.result == "late"
    assert not take(consumer, now)
    assert Delivery.objects.get(id=second.id).state == "awaiting_ack"
    check()


def test_an_acknowledgement_after_its_timeout_prevents_a_retry(
    consumer: Consumer, now: datetime
) -> None:
    row = taken(consumer, now)
    answered(row, now)
    consumer.retry = [3600]
    consumer.save()
    later = now + timedelta(minutes=2)
    assert not take(consumer, later)
    waiting = Delivery.objects.get(id=row.id)
    assert (waiting.state, waiting.reason) == ("queued", "ack_timeout")
    assert callbacks.acknowledge(row.id, ok=True, now=later).result == "on_time"
    assert [one.event_type for one in take(consumer, later)] == ["A2"]
    check()


@pytest.mark.seed("S4-26")
def test_a_progress_report_extends_the_acknowledgement_timeout(
    consumer: Consumer, now: datetime
) -> None:
    row = taken(consumer, now)
    assert callbacks.extend_wait(row.id, now=now).result == "early"
    assert not PendingAck.objects.exists()
    answered(row, now)
    for seconds in (50, 100):
        at = now + timedelta(seconds=seconds)
        assert not take(consumer, at)
        assert callbacks.extend_wait(row.id, now=at).result == "on_time"
    last = now + timedelta(seconds=159)
    assert not take(consumer, last)
    assert callbacks.acknowledge(row.id, ok=True, now=last).result == "on_time"
    done = Delivery.objects.get(id=row.id)
    assert (done.state, done.attempt_count, done.failure_count) == ("delivered", 1, 0)
    assert callbacks.extend_wait(row.id, now=last).result == "double"
    assert [one.event_type for one in take(consumer, last)] == ["A2"]
    check()


def test_an_acknowledgement_of_another_consumer_is_ignored(
    consumer: Consumer, now: datetime
) -> None:
    row = taken(consumer, now)
    real = callbacks.token(row.id)
    for token in ("x", real[:-1], real[:-1] + ("A" if real[-1] != "A" else "B"), f"{row.id}.x"):
        answer = LeanClient().post(f"/acks/{token}")
        assert answer.status_code == 404, answer.content
        assert answer.json()["code"] == "unknown_token"
    assert LeanClient().post(f"/acks/{real}", b"{", "application/json").status_code == 400
    bad = LeanClient().post(f"/acks/{real}", b'{"status": "x"}', "application/json")
    assert bad.status_code == 422
    assert LeanClient().get(f"/acks/{real}").status_code == 405
    assert Delivery.objects.get(id=row.id).state == "in_flight"


def test_without_ack_the_response_completes_the_delivery(consumer: Consumer, now: datetime) -> None:
    row = taken(consumer, now)
    answered(row, now)
    consumer.ack = None
    consumer.save()
    later = now + timedelta(minutes=2)
    fanout.fan_out(1, 0)
    take(consumer, later)
    assert Delivery.objects.get(id=row.id).state == "delivered"
    check()


def test_unused_early_acknowledgements_are_deleted(consumer: Consumer, now: datetime) -> None:
    row = taken(consumer, now)
    callbacks.acknowledge(row.id, ok=True, now=now)
    later = now + timedelta(hours=2)
    assert callbacks.forget(later) == 0, "its attempt is open: nobody ran for two hours"
    Delivery.objects.filter(id=row.id).update(state="queued")
    assert callbacks.forget(now) == 0
    assert callbacks.forget(later) == 1
