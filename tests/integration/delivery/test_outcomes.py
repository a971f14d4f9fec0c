"""Every response of a consumer to an attempt, and how the delivery ends (S0-13)."""

import dataclasses
import socket
from datetime import timedelta
from itertools import pairwise

import pytest

from channels_app.core.networks import parse_networks
from channels_app.database import clock
from channels_app.models import Consumer
from delivery import conf as conf_module
from delivery.models import Attempt, ConsumerHealth, Delivery
from delivery.pump import assignment as roster_module
from delivery.transport import payloads
from tests.support import pumping
from tests.support.pumping import all_finished, make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)

FAILURES = {
    "/redirect?to=http://127.0.0.1:9/": ("redirect", 302),
    "/status/301": ("redirect", 301),
    "/status/404": ("not_found", 404),
    "/status/400": ("client_error", 400),
    "/status/500": ("server_error", 500),
    "/hang": ("timeout", None),
    "/drip?ms=100&bytes=100": ("timeout", 200),
    "/reset": ("connection_reset", None),
    "/garbage": ("protocol_error", None),
}


def deliver(url: str, seconds: float = 15.0, **values: object) -> tuple[Delivery, list[Attempt]]:
    make_consumer(make_channel(), url, **({"max_attempts": 2, "timeout_ms": 400} | values))
    publish(Consumer.objects.get().channel, b"x")
    with pumping.pumping() as pump:
        pump_until(pump, all_finished, seconds)
    return Delivery.objects.get(), list(Attempt.objects.order_by("number"))


def is_dead_of(delivery: Delivery, attempts: list[Attempt], outcome: str) -> None:
    assert (delivery.state, delivery.reason, delivery.outcome) == ("dead", "exhausted", outcome)
    assert [attempt.outcome for attempt in attempts] == [outcome, outcome]
    assert all(attempt.error for attempt in attempts)
    assert delivery.failure_count == 2


@pytest.mark.seed("S0-13")
@pytest.mark.parametrize("path", FAILURES)
def test_a_failing_delivery_is_dead_after_exactly_max_attempts(
    receiver: Receiver, path: str
) -> None:
    outcome, status = FAILURES[path]
    # Short where the timeout has to expire, long where a response has to arrive.
    timeout_ms = 400 if outcome == "timeout" else 10_000
    delivery, attempts = deliver(receiver.url(path), timeout_ms=timeout_ms)
    is_dead_of(delivery, attempts, outcome)
    assert attempts[0].status_code == status
    assert len(receiver.requests()) == 2


def test_a_slow_drip_is_cut_off_at_the_total_time(receiver: Receiver) -> None:
    _, attempts = deliver(receiver.url("/drip?ms=100&bytes=100"), max_attempts=1)
    assert 350 <= attempts[0].total_ms < 2000


def test_refused() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        delivery, attempts = deliver(f"http://127.0.0.1:{port}/")
    is_dead_of(delivery, attempts, "connection_refused")


def test_bad_tls() -> None:
    with Receiver(tls=True) as untrusted:
        delivery, attempts = deliver(untrusted.url("/ok"))
        assert untrusted.requests() == []
    is_dead_of(delivery, attempts, "tls_error")


@pytest.mark.parametrize(
    ("status", "name", "value", "outcome"),
    [
        (422, "Hookstation-Retry", "never", "client_error"),
        (500, "hookstation-retry", " Never ", "server_error"),
        (302, "Hookstation-Retry", "never", "redirect"),
    ],
)
def test_a_response_with_retry_never_is_dead_at_once(
    receiver: Receiver, status: int, name: str, value: str, outcome: str
) -> None:
    receiver.script("/never", [Reply(status, headers=((name, value),))])
    delivery, attempts = deliver(receiver.url("/never"), max_attempts=5, timeout_ms=10_000)
    assert (delivery.state, delivery.reason) == ("dead", "permanent_failure")
    assert (delivery.outcome, delivery.status_code, delivery.failure_count) == (outcome, status, 1)
    assert [attempt.outcome for attempt in attempts] == [outcome]
    assert Consumer.objects.get().state == "active"


def test_hookstation_retry_never_is_final_only_on_failures(receiver: Receiver) -> None:
    replies = [
        Reply(500, headers=(("Hookstation-Retry", "later"),)),
        Reply(500, headers=(("X-Hookstation-Retry", "never"),), body=b"Hookstation-Retry: never"),
        Reply(200, headers=(("Hookstation-Retry", "never"),)),
    ]
    receiver.script("/later", replies)
    delivery, attempts = deliver(receiver.url("/later"), max_attempts=5, timeout_ms=10_000)
    assert (delivery.state, len(attempts)) == ("delivered", 3)


@pytest.mark.parametrize(("status", "outcome"), [(429, "throttled"), (503, "unavailable")])
def test_retry_after_delays_the_retry_and_slows_the_consumer(
    receiver: Receiver, status: int, outcome: str
) -> None:
    receiver.script("/busy", [Reply(status, headers=(("Retry-After", "1"),)), Reply(200)])
    delivery, attempts = deliver(receiver.url("/busy"))
    assert delivery.state == "delivered"
    assert [attempt.outcome for attempt in attempts] == [outcome, "delivered"]
    first, second = receiver.requests()
    assert second.at - first.at >= 1.0


def test_retry_after_longer_than_the_backoff_is_obeyed_up_to_a_day(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/status/429?retry_after=100000"))
    publish(channel, b"1", b"2")
    with pumping.pumping() as pump:
        pump_until(pump, lambda: bool(ConsumerHealth.objects.exclude(slow_until=None)))
    waiting = Delivery.objects.filter(failure_count=1).first()
    assert waiting is not None
    assert waiting.due_at is not None
    wait = waiting.due_at - clock.now()
    assert timedelta(hours=23) < wait <= timedelta(days=1)


def test_410_is_dead_at_once_and_disables(receiver: Receiver) -> None:
    delivery, attempts = deliver(receiver.url("/status/410"), max_attempts=9)
    assert (delivery.state, delivery.reason, delivery.outcome) == ("dead", "gone", "gone")
    assert len(attempts) == 1
    consumer = Consumer.objects.get()
    assert (consumer.state, consumer.state_reason) == ("disabled", "It answered 410 Gone.")


def test_an_oversized_answer_is_cut_and_still_counts(receiver: Receiver) -> None:
    delivery, (attempt,) = deliver(receiver.url("/oversized?bytes=5000000"), timeout_ms=5000)
    assert delivery.state == "delivered"
    assert attempt.outcome == "delivered_oversized"
    assert len(attempt.answer.body) == conf_module.conf().excerpt_bytes


@pytest.fixture
def no_private_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = dataclasses.replace(conf_module.conf(), allowed_targets=parse_networks(""))
    monkeypatch.setattr(payloads, "conf", lambda: strict)


@pytest.mark.usefixtures("no_private_targets")
@pytest.mark.parametrize("host", ["127.0.0.1", "rebound.localhost"])
def test_a_private_address_is_not_called_through_any_host_name(
    receiver: Receiver, host: str
) -> None:
    """The name passed registration; what counts is the address when the socket opens."""
    delivery, attempts = deliver(receiver.url("/ok", host=host))
    is_dead_of(delivery, attempts, "blocked_address")
    assert receiver.requests() == []
    assert receiver.connections == 0


def test_a_circuit_opens_probes_and_closes(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = dataclasses.replace(
        conf_module.conf(), breaker_failures=3, breaker_base_s=0.3, breaker_cap_s=0.3
    )
    monkeypatch.setattr(roster_module, "conf", lambda: eager)
    receiver.script("/down", [Reply(500)] * 8 + [Reply(200)])
    channel = make_channel()
    make_consumer(channel, receiver.url("/down"), max_in_flight=3, max_attempts=9)
    publish(channel, *[b"x"] * 30)
    with pumping.pumping() as pump:
        pump_until(pump, lambda: ConsumerHealth.objects.filter(circuit="open").exists())
        assert len(receiver.requests()) <= 6  # three, and those in flight by then
        pump_until(pump, all_finished)
    times = [request.at for request in receiver.requests()]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert sum(gap >= 0.25 for gap in gaps) >= 2  # probes, one at a time
    health = ConsumerHealth.objects.get()
    assert (health.circuit, health.consecutive_failures) == ("closed", 0)
    assert Delivery.objects.filter(state="delivered").count() == 30
