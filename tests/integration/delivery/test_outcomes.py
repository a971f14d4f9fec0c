"""Every response of a consumer to an attempt, and how the delivery ends (S0-13)."""

import dataclasses
import socket
import tomllib
from contextlib import ExitStack
from itertools import pairwise
from threading import Thread
from typing import Any

import pytest

from channels_app.database import clock
from channels_app.models import Channel, Consumer
from delivery import conf as conf_module
from delivery import metrics
from delivery.core import breaker, lifecycle
from delivery.core.breaker import Circuit
from delivery.health import consumer_health
from delivery.health.consumer_health import HealthFinding
from delivery.management import receiver as demo_receiver
from delivery.management.demo.stage import SHOP
from delivery.models import Attempt, ConsumerHealth, Delivery
from delivery.portal import presenters
from delivery.pump import assignment as roster_module
from delivery.pump.outage import MIN_HOSTS
from delivery.pump.pump import Pump
from delivery.queue import claim
from delivery.transport import Sender, payloads
from tests.support import pumping
from tests.support.http2 import Http2Receiver
from tests.support.pumping import all_finished, make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)

FAILURES = {
    "redirect": ("/redirect?to=http://127.0.0.1:9/", 302),
    "server_error": ("/status/500", 500),
    "timeout": ("/drip?ms=20", 200),
    "connection_reset": ("/reset", None),
}
"""Path and status of failures with and without a status, by their outcome.

tests/integration/transport has all of them.
"""
NEVER = "Hookstation-Retry"
FINAL = {
    "client_error": (Reply(422, headers=((NEVER, "never"),)), "permanent_failure"),
    "server_error": (Reply(500, headers=((NEVER.lower(), " Never "),)), "permanent_failure"),
    "redirect": (Reply(302, headers=((NEVER, "never"),)), "permanent_failure"),
    "gone": (Reply(410), "gone"),
}
"""Final responses, and the reasons of their dead deliveries, by their outcome."""


def deliver(channel: Channel) -> dict[str, Delivery]:
    """Publish a message; return the finished deliveries by the names of their consumers.

    The time of a response that drips is over as soon as its first bytes have arrived.
    """

    def is_finished() -> bool:
        assert isinstance(pump.sender, Sender)
        for handle in pump.sender._busy.values():
            if "/drip" in handle.call.url and handle._excerpt:
                handle.spend(handle.call.timeout_ms)
        return all_finished()

    publish(channel, b"x")
    with pumping.pumping() as pump:
        pump_until(pump, is_finished)
    return {row.consumer.client_id: row for row in Delivery.objects.select_related("consumer")}


def attempts_of(delivery: Delivery) -> list[Attempt]:
    return list(Attempt.objects.filter(delivery=delivery).order_by("number"))


def is_dead_of(delivery: Delivery, outcome: str) -> None:
    assert (delivery.state, delivery.reason, delivery.outcome) == ("dead", "exhausted", outcome)
    attempts = attempts_of(delivery)
    assert [attempt.outcome for attempt in attempts] == [outcome, outcome]
    assert all(attempt.error for attempt in attempts)
    assert delivery.failure_count == 2


def test_circuits_of_others_are_saved_although_a_consumer_was_deleted() -> None:
    channel = make_channel()
    first, gone, last = (make_consumer(channel, "http://127.0.0.1:9/") for _ in range(3))
    Consumer.objects.filter(id=gone.id).delete()
    findings = [
        HealthFinding(gone.id, Circuit(), "delivered", True),
        HealthFinding(first.id, Circuit(), "delivered", True),
        HealthFinding(last.id, Circuit(consecutive_failures=2), "timeout", False),
    ]
    now = clock.now()
    consumer_health.save(findings, now)
    rows = ConsumerHealth.objects.order_by("consumer_id").values_list(
        "consumer_id", "consecutive_failures", "last_success_at", "last_failure_at", "last_outcome"
    )
    assert list(rows) == [
        (first.id, 0, now, None, "delivered"),
        (last.id, 2, None, now, "timeout"),
    ]


@pytest.mark.seed("S0-13", "S0-39")
def test_a_failing_delivery_is_dead_after_exactly_max_attempts(receiver: Receiver) -> None:
    channel = make_channel()
    for outcome, (path, _) in FAILURES.items():
        make_consumer(channel, receiver.url(path), client_id=outcome, max_attempts=2)
    deliveries = deliver(channel)
    for outcome, (path, status) in FAILURES.items():
        is_dead_of(deliveries[outcome], outcome)
        assert attempts_of(deliveries[outcome])[0].status_code == status, outcome
        requests = receiver.requests(path.partition("?")[0])
        numbers = [request.header("hookstation-attempt") for request in requests]
        if outcome == "connection_reset":
            # curl repeats a request if a kept connection breaks before a response begins.
            numbers = list(dict.fromkeys(numbers))
        assert numbers == ["1", "2"], outcome


@pytest.mark.trap("a success lost with its response body")
def test_a_success_with_a_broken_body_is_delivered_once_with_a_note(receiver: Receiver) -> None:
    receiver.script("/x", [Reply(raw=b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"id": "7"')])
    channel = make_channel()
    make_consumer(channel, receiver.url("/x"), client_id="x", max_attempts=3)
    row = deliver(channel)["x"]
    (attempt,) = attempts_of(row)
    assert (row.state, attempt.outcome, row.failure_count) == ("delivered", "delivered", 0)
    (answered,) = [
        event for event in presenters.timeline(row, [attempt], hidden=False) if event.answer
    ]
    assert (answered.tone, answered.note) == ("good", attempt.error)
    assert attempt.error.startswith("The exchange broke off after the response headers: ")
    assert len(receiver.requests()) == 1


def test_410_and_retry_never_are_dead_at_once_and_410_disables(receiver: Receiver) -> None:
    channel = make_channel()
    for outcome, (reply, _) in FINAL.items():
        receiver.script(f"/{outcome}", [reply])
        make_consumer(
            channel,
            receiver.url(f"/{outcome}"),
            client_id=outcome,
            max_attempts=5,
        )
    deliveries = deliver(channel)
    for outcome, (reply, reason) in FINAL.items():
        row = deliveries[outcome]
        assert (row.state, row.reason, row.outcome) == ("dead", reason, outcome)
        assert (row.status_code, row.failure_count) == (reply.status, 1)
        assert [attempt.outcome for attempt in attempts_of(row)] == [outcome]
    disabled = Consumer.objects.exclude(state="active").get()
    assert (disabled.client_id, disabled.state) == ("gone", "disabled")
    assert disabled.state_reason == "It answered 410 Gone."


def test_hookstation_retry_never_is_final_only_on_failures(receiver: Receiver) -> None:
    replies = [
        Reply(500, headers=((NEVER, "later"),)),
        Reply(500, headers=((f"X-{NEVER}", "never"),), body=f"{NEVER}: never".encode()),
        Reply(200, headers=((NEVER, "never"),)),
    ]
    receiver.script("/later", replies)
    channel = make_channel()
    make_consumer(channel, receiver.url("/later"), client_id="later", max_attempts=5)
    delivery = deliver(channel)["later"]
    assert (delivery.state, len(attempts_of(delivery))) == ("delivered", 3)


def test_retry_after_delays_the_retry_and_slows_the_consumer(receiver: Receiver) -> None:
    channel = make_channel()
    for outcome, status in (("throttled", 429), ("unavailable", 503)):
        replies = [Reply(status, headers=(("Retry-After", "1"),)), Reply(200)]
        receiver.script(f"/{outcome}", replies)
        make_consumer(channel, receiver.url(f"/{outcome}"), client_id=outcome, max_attempts=2)
    for outcome, delivery in deliver(channel).items():
        assert delivery.state == "delivered"
        assert [one.outcome for one in attempts_of(delivery)] == [outcome, "delivered"]
        first, second = receiver.requests(f"/{outcome}")
        assert second.at - first.at >= 0.95, "clocks are corrected by milliseconds"


@pytest.fixture
def no_private_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = dataclasses.replace(conf_module.conf(), allowed_targets="")
    monkeypatch.setattr(payloads, "conf", lambda: strict)


@pytest.mark.usefixtures("no_private_targets")
def test_a_private_address_is_not_called_through_any_host_name(receiver: Receiver) -> None:
    """The name passed registration; what counts is the address when the socket opens."""
    channel = make_channel()
    url = receiver.url("/ok", host="rebound.localhost")
    make_consumer(channel, url, client_id="rebound", max_attempts=2)
    is_dead_of(deliver(channel)["rebound"], "blocked_address")
    assert receiver.requests() == []
    assert receiver.connections == 0


@pytest.mark.trap("an outage of this side is charged to the consumers")
def test_an_outage_of_the_resolver_is_not_charged_to_consumers(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    resolve, is_away = socket.getaddrinfo, True

    def look_up(host: str, port: int, **options: Any) -> Any:
        if is_away:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve("127.0.0.1", port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(lifecycle, "FREE_ATTEMPTS", 2)
    monkeypatch.setattr(claim, "FREE_ATTEMPTS", 2)
    monkeypatch.setattr(lifecycle, "MIN_LOCAL_WAIT_S", 0.0)
    monkeypatch.setattr(breaker, "SLOW_CAP_S", 0.0)
    counted = metrics.LOCAL_FAILURES._value.get()
    channel = make_channel()
    url = receiver.url("/ok", host="hook.test")
    make_consumer(channel, url, retry=[0], max_attempts=2)
    publish(channel, b"x")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: Attempt.objects.count() >= 5)
        waiting = Delivery.objects.get()
        health = pump.assignment.queues[waiting.consumer_id].circuit
        is_away = False
        pump_until(pump, all_finished)
    assert (waiting.state, waiting.failure_count, waiting.interruption_count) == ("queued", 0, 0)
    assert waiting.reason == "interrupted"
    assert (health.state, health.consecutive_failures, health.failing_since) == ("closed", 0, None)
    assert health.slow_count >= 4, "the consumer's other deliveries are not held back"
    *failed, last = attempts_of(waiting)
    assert {attempt.outcome for attempt in failed} == {"interrupted"}
    assert failed[0].error.startswith("The resolver did not answer: ")
    assert (last.outcome, Delivery.objects.get().state) == ("delivered", "delivered")
    assert ConsumerHealth.objects.get().last_failure_at is None
    assert metrics.LOCAL_FAILURES._value.get() - counted == len(failed)
    assert [it.levelname for it in caplog.records if "did not answer" in it.getMessage()] == [
        "WARNING"
    ]


def test_a_consumer_can_refuse_http2(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = make_channel()
    with Http2Receiver() as endpoint:
        settings = dataclasses.replace(conf_module.conf(), ca_file=endpoint.ca_file)
        monkeypatch.setattr(payloads, "conf", lambda: settings)
        consumers = [
            make_consumer(channel, endpoint.url("/x"), http_version=version)
            for version in ("auto", "1.1")
        ]
        rows = deliver(channel)

    answers = [attempts_of(rows[it.client_id])[0].answer for it in consumers]
    assert [answer.headers[:8] for answer in answers] == ["HTTP/2 2", "HTTP/1.1"]


@pytest.mark.trap("an outage of this side is charged to the consumers")
def test_when_all_hosts_stop_answering_at_once_only_the_first_are_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle, "MIN_LOCAL_WAIT_S", 0.0)
    monkeypatch.setattr(breaker, "SLOW_CAP_S", 0.0)
    hosts = [f"127.0.0.{n}" for n in range(2, 8)]
    channel = make_channel()
    with ExitStack() as stack, pumping.pumping() as pump:
        receivers = {host: stack.enter_context(Receiver(host=host)) for host in hosts}
        for receiver in receivers.values():
            make_consumer(channel, receiver.url("/ok"), retry=[0], max_attempts=1)
        publish(channel, b"before")
        pump_until(pump, all_finished)
        for receiver in receivers.values():
            receiver.close()
        deliveries = Delivery.objects.filter(message_id__in=publish(channel, b"during"))
        pump_until(pump, lambda: Attempt.objects.filter(number=3).count() == 2)
        dead = list(deliveries.filter(state="dead"))
        waiting = list(deliveries.exclude(state="dead"))
        circuits = [pump.assignment.queues[it.consumer_id].circuit for it in waiting]
        for host, receiver in receivers.items():
            stack.enter_context(Receiver(host=host, port=receiver.port))
        pump_until(pump, all_finished)

    assert {(it.outcome, it.failure_count) for it in dead} == {("connection_refused", 1)}
    assert len(dead) == MIN_HOSTS - 1
    assert {(it.failure_count, it.interruption_count) for it in waiting} == {(0, 0)}
    assert {circuit.consecutive_failures for circuit in circuits} == {0}
    for delivery in waiting:
        *failed, last = attempts_of(delivery)
        assert {attempt.outcome for attempt in failed} == {"interrupted"}
        assert failed[0].error.startswith("Nearly all hosts stopped answering, ")
        assert last.outcome == "delivered"


def test_a_circuit_opens_probes_and_closes(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = dataclasses.replace(
        conf_module.conf(), breaker_failures=3, breaker_base_ms=300, breaker_cap_ms=300
    )
    monkeypatch.setattr(roster_module, "conf", lambda: eager)
    receiver.script("/down", [Reply(500)] * 8 + [Reply(200)])
    channel = make_channel()
    make_consumer(channel, receiver.url("/down"), max_in_flight=3, max_attempts=9)
    publish(channel, *[b"x"] * 12)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: ConsumerHealth.objects.filter(circuit="open").exists())
        pump_until(pump, all_finished)
    times = [request.at for request in receiver.requests()]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    pauses = [place for place, gap in enumerate(gaps) if gap >= 0.25]
    assert len(pauses) >= 2  # probes, one at a time
    assert pauses[0] < 6  # three, and those in flight by then
    health = ConsumerHealth.objects.get()
    assert (health.circuit, health.consecutive_failures) == ("closed", 0)
    assert Delivery.objects.filter(state="delivered").count() == 12


@pytest.mark.trap("refused messages hold up a working consumer")
@pytest.mark.parametrize(
    ("statuses", "circuit"),
    [
        ((422, 401, 404, 413), "closed"),
        ((500, 500, 500, 422), "closed"),
        ((500, 500, 422, 500), "closed"),
        ((422, 422, 422, 500), "closed"),
        ((408, 408, 408, 408), "open"),
        ((500, 500, 500, 500), "open"),
    ],
)
def test_a_refusal_closes_the_circuit_although_the_consumer_fails(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, statuses: tuple[int, ...], circuit: str
) -> None:
    eager = dataclasses.replace(conf_module.conf(), breaker_failures=3, breaker_base_ms=50)
    monkeypatch.setattr(roster_module, "conf", lambda: eager)
    receiver.script("/x", [Reply(status) for status in statuses])
    channel = make_channel()
    make_consumer(channel, receiver.url("/x"), max_in_flight=1, max_attempts=1)
    publish(channel, *[b"x"] * len(statuses))
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)
        (queue,) = pump.assignment.queues.values()
    health = queue.circuit
    assert (health.state, health.consecutive_failures) == (circuit, len(statuses))
    assert health.failing_since is not None


def test_a_burst_does_not_open_the_circuit_of_the_demos_recovering_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eager = dataclasses.replace(conf_module.conf(), breaker_failures=20)
    monkeypatch.setattr(roster_module, "conf", lambda: eager)
    consumers = tomllib.loads(SHOP.read_text(encoding="utf-8"))["consumers"]
    (url,) = [each["url"] for each in consumers if each["client_id"] == "recovering"]
    channel = make_channel()
    with (
        demo_receiver.Server(("127.0.0.1", 0), demo_receiver.ReceiverState()) as server,
        pumping.pumping() as pump,
    ):
        serving = Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        address = f"http://127.0.0.1:{server.server_port}"
        make_consumer(channel, url.replace("$receiver", address))
        publish(channel, *[b"x"] * 30)
        try:
            pump_until(pump, lambda: all_finished() or _is_open(pump))
        finally:
            server.shutdown()
            serving.join()
        assert not _is_open(pump)
    assert set(Delivery.objects.values_list("state", "attempt_count")) == {("delivered", 3)}


def _is_open(pump: Pump) -> bool:
    return any(queue.circuit.state == "open" for queue in pump.assignment.queues.values())


@pytest.mark.trap("refused messages hold up a working consumer")
def test_a_probe_takes_another_message_than_the_last_that_failed(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = dataclasses.replace(conf_module.conf(), breaker_failures=1, breaker_base_ms=300)
    monkeypatch.setattr(roster_module, "conf", lambda: eager)
    receiver.script("/x", [Reply(500), Reply(200)])
    channel = make_channel()
    make_consumer(channel, receiver.url("/x"))
    publish(channel, b"urgent", priority=9)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: ConsumerHealth.objects.filter(circuit="open").exists())
        publish(channel, b"normal")
        pump_until(pump, all_finished)
    bodies = [request.body for request in receiver.requests()]
    assert bodies == [b"urgent", b"normal", b"urgent"]
