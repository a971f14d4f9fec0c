"""Names are resolved once and renewed in time; a dead name delays only its own calls.

The machine's resolver cannot be made to hang at will, so the lookup itself is scripted here; the
calls, their sockets and the receiver are real.
"""

import errno
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from channels_app.core.networks import parse_networks
from delivery.core.outcome import Outcome
from delivery.transport import dns
from delivery.transport.dns import place_of
from tests.support.receiver import Receiver, Reply
from tests.support.sending import Loop, a_call
from tests.support.waiting import until

Answers = dict[str, list[str]]


class Resolver:
    """Replaces `getaddrinfo`; names that it does not know hang until it closes."""

    def __init__(self) -> None:
        self.answers: Answers = {}
        self.errors: dict[str, OSError] = {}
        self.asked: list[str] = []
        self.delay_s = 0.0
        self.closing = threading.Event()

    def __call__(self, host: str, port: int, **options: Any) -> list[Any]:
        self.asked.append(host)
        self.closing.wait(self.delay_s)
        if host in self.errors:
            raise self.errors[host]
        if host not in self.answers:
            self.closing.wait()
        if not self.answers.get(host):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (ip, port)) for ip in self.answers[host]]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    scripted = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", scripted)
    yield scripted
    scripted.closing.set()


@pytest.fixture
def loop(resolver: Resolver) -> Iterator[Loop]:
    with closing(Loop()) as made:
        yield made


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://a.example/x", ("a.example", 80)),
        ("https://A.Example:8443/x?y", ("a.example", 8443)),
        ("https://a.example.", ("a.example.", 443)),
        ("http://4you.example", ("4you.example", 80)),
        ("http://127.0.0.1/", None),
        ("http://127.1/", None),
        ("http://0x7f000001:80/", None),
        ("http://[::1]/", None),
        ("http://localhost/", None),
        ("http://a.localhost./", None),
        ("http://[::1/", None),
        ("http://a:b/", None),
        ("http:///x", None),
        ("ftp://a.example/", None),
        ("", None),
    ],
)
def test_only_host_names_are_resolved(url: str, place: dns.Place | None) -> None:
    assert place_of(url) == place


def test_one_lookup_serves_many_calls(loop: Loop, resolver: Resolver, receiver: Receiver) -> None:
    resolver.answers["hook.test"] = ["127.0.0.1"]
    resolver.delay_s = 0.1
    url = receiver.url(host="hook.test")

    first = loop.run(*(a_call(url) for _ in range(20)))
    later = loop.run(*(a_call(url) for _ in range(20)))

    assert {answer.outcome for answer in first + later} == {Outcome.DELIVERED}
    assert resolver.asked == ["hook.test"]
    # The first call has waited for all of the lookup, the others for what was left of it.
    assert max(answer.total_ms for answer in first) >= 100
    assert max(answer.first_byte_ms or 0 for answer in first) >= 100
    request = receiver.requests()[0]
    assert request.header("Host") == f"hook.test:{receiver.port}"


def test_each_address_of_a_name_is_tried(
    loop: Loop, resolver: Resolver, receiver: Receiver
) -> None:
    resolver.answers["hook.test"] = ["::1", "127.0.0.9", "127.0.0.1"]

    answer = loop.post(receiver.url(host="hook.test"))

    assert (answer.outcome, answer.remote_address) == (Outcome.DELIVERED, "127.0.0.1")


def test_a_blocked_address_does_not_hide_other_failures(loop: Loop, resolver: Resolver) -> None:
    resolver.answers["hook.test"] = ["169.254.169.254", "127.0.0.9"]

    answer = loop.post("http://hook.test:1/")

    assert answer.outcome is Outcome.CONNECTION_REFUSED


def test_no_call_uses_an_outdated_address(
    loop: Loop, resolver: Resolver, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two calls are cancelled just before they tell libcurl the first address.
    monkeypatch.setattr(dns, "FRESH_S", 0.0)
    resolver.answers["hook.test"] = ["127.0.0.1"]
    receiver.script("/ok", [Reply(close=True)])  # a kept connection would need no address
    url = receiver.url(host="hook.test")
    loop.sender.start(a_call(url))
    loop.sender.start(a_call(url))
    loop.ready(60)
    assert len(loop.sender.abort_all()) == 2
    resolver.answers["hook.test"] = ["169.254.169.254"]
    monkeypatch.setattr(dns, "FRESH_S", 60.0)
    until(lambda: loop.post(url).outcome is Outcome.BLOCKED_ADDRESS, "the new address is used")

    answers = [*loop.run(a_call(url), a_call(url)), *loop.run(a_call(url), a_call(url))]

    assert {answer.outcome for answer in answers} == {Outcome.BLOCKED_ADDRESS}


def test_a_call_cancelled_before_it_began_caches_no_address(
    loop: Loop, resolver: Resolver, receiver: Receiver
) -> None:
    resolver.answers["hook.test"] = ["127.0.0.1"]
    url = receiver.url(host="hook.test")
    loop.sender.start(a_call(url))
    loop.ready(60)

    assert len(loop.sender.abort_all()) == 1
    loop.post(receiver.url())

    assert loop.post(url).outcome is Outcome.DELIVERED


def test_a_host_name_with_a_private_address_is_blocked(
    resolver: Resolver, receiver: Receiver
) -> None:
    resolver.answers["evil.test"] = ["127.0.0.1"]
    resolver.answers["metadata.test"] = ["169.254.169.254"]
    resolver.answers["zone.test"] = ["fe80::1%lo"]
    with closing(Loop(allowed=parse_networks("127.0.0.9"))) as loop:
        evil = loop.post(receiver.url(host="evil.test"))
        metadata = loop.post("http://metadata.test/")
        zone = loop.post("http://zone.test/")

    assert (evil.outcome, evil.remote_address) == (Outcome.BLOCKED_ADDRESS, "127.0.0.1")
    assert metadata.error == "The address 169.254.169.254 is not allowed."
    assert zone.error == "The address fe80::1 is not allowed."
    assert receiver.connections == 0


@pytest.mark.trap("a webhook into the private network")
def test_a_host_name_that_changes_to_a_private_address_is_blocked(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "FRESH_S", 0.0)
    resolver.answers["rebound.test"] = ["127.0.0.1"]
    allowed = parse_networks("127.0.0.1")
    with Receiver() as outside, closing(Loop(allowed=allowed)) as loop:
        outside.script("/ok", [Reply(close=True)])  # a kept connection would need no address
        url = outside.url(host="rebound.test")
        first = loop.post(url)
        resolver.answers["rebound.test"] = ["::1"]
        loop.post(url)  # uses the former address and starts its renewal
        until(
            lambda: loop.turn() == [] and loop.post(url).remote_address == "::1",
            "the new address is used",
        )
        moved = loop.post(url)

    assert first.outcome is Outcome.DELIVERED
    assert moved.outcome is Outcome.BLOCKED_ADDRESS


def test_unresolvable_host_names_do_not_block_others(
    loop: Loop, resolver: Resolver, receiver: Receiver
) -> None:
    resolver.answers["hook.test"] = ["127.0.0.1"]
    dead = [a_call(f"http://dead-{n}.test/") for n in range(60)]
    dead += [a_call("http://dead-0.test/") for n in range(60)]

    (quick,) = loop.run(*dead, a_call(receiver.url(host="hook.test")), left=len(dead))

    assert quick.outcome is Outcome.DELIVERED
    assert resolver.asked.count("dead-0.test") == 1


AGAIN = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


@pytest.mark.trap("an outage of this side is charged to the consumers")
@pytest.mark.parametrize(
    ("error", "outcome", "sentence"),
    [
        (AGAIN, Outcome.INTERRUPTED, f"The resolver did not answer: {AGAIN.strerror}."),
        (
            OSError(errno.EMFILE, "Too many open files"),
            Outcome.INTERRUPTED,
            "The resolver did not answer: Too many open files.",
        ),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            Outcome.DNS_ERROR,
            "The host name could not be resolved: Name or service not known.",
        ),
    ],
)
def test_a_silent_resolver_differs_from_an_unknown_name(
    loop: Loop, resolver: Resolver, error: OSError, outcome: Outcome, sentence: str
) -> None:
    resolver.errors["hook.test"] = error

    answer = loop.post("http://hook.test/")

    assert (answer.outcome, answer.error) == (outcome, sentence)


@pytest.mark.parametrize(
    ("answered", "grace_s", "outcome"),
    [
        pytest.param(True, 0.0, Outcome.DNS_ERROR, id="only this name fails, for long"),
        pytest.param(True, 600.0, Outcome.INTERRUPTED, id="only this name fails, for now"),
        pytest.param(False, 0.0, Outcome.INTERRUPTED, id="no name is resolved"),
    ],
)
def test_a_name_that_alone_has_no_answer_is_the_consumers_failure_in_time(
    loop: Loop,
    resolver: Resolver,
    monkeypatch: pytest.MonkeyPatch,
    answered: bool,
    grace_s: float,
    outcome: Outcome,
) -> None:
    monkeypatch.setattr(dns, "GRACE_S", grace_s)
    resolver.errors = {"hook.test": AGAIN}
    resolver.answers["other.test"] = []
    first = loop.post("http://hook.test/")
    if answered:
        assert loop.post("http://other.test/").outcome is Outcome.DNS_ERROR

    again = loop.post("http://hook.test/")

    assert (first.outcome, again.outcome) == (Outcome.INTERRUPTED, outcome)


def test_a_lookup_without_an_answer_ends_at_the_earlier_timeout(loop: Loop) -> None:
    by_connect, by_total = loop.run(
        a_call("http://dead.test/", connect_timeout_ms=60),
        a_call("http://dead.test/", timeout_ms=50),
    )

    assert {by_connect.outcome, by_total.outcome} == {Outcome.INTERRUPTED}
    assert by_connect.error == "The resolver did not answer: no answer in time."
    assert by_connect.total_ms >= 60
    assert by_total.total_ms >= 50


def test_more_names_than_threads(
    loop: Loop, resolver: Resolver, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "MAX_THREADS", 2)
    resolver.answers = {f"hook-{n}.test": ["127.0.0.1"] for n in range(20)}
    resolver.delay_s = 0.01

    answers = loop.run(*(a_call(receiver.url(host=host)) for host in resolver.answers))
    resolver.answers["one-more.test"] = ["127.0.0.1"]
    answers.append(loop.post(receiver.url(host="one-more.test")))

    assert {answer.outcome for answer in answers} == {Outcome.DELIVERED}
    assert len(resolver.asked) == 21


def test_waiting_for_dns_counts_towards_the_timeout(
    loop: Loop, resolver: Resolver, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: began)
    monkeypatch.setattr(dns, "time", clock)
    resolver.answers["hook.test"] = ["127.0.0.1"]
    url = receiver.url("/hang", host="hook.test")
    loop.sender.start(a_call(url, timeout_ms=60_500, connect_timeout_ms=60_500))
    clock.monotonic = lambda: began + 60.0

    (answer,) = loop.finish()
    again = loop.post(url, timeout_ms=500)

    assert (answer.outcome, again.outcome) == (Outcome.TIMEOUT, Outcome.TIMEOUT)
    assert 60_500 <= answer.total_ms < 120_000
    assert 500 <= again.total_ms < 60_000
    assert answer.error == "No complete response within 60500 ms."


def test_a_cached_address_is_used_during_renewal_and_dropped_on_failure(
    loop: Loop, resolver: Resolver, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "FRESH_S", 0.0)
    resolver.answers["hook.test"] = ["127.0.0.1"]
    url = receiver.url(host="hook.test")
    loop.post(url)
    resolver.answers["hook.test"] = []

    served = loop.post(url)
    until(
        lambda: loop.turn() == [] and loop.post(url).outcome is Outcome.DNS_ERROR,
        "the old address is dropped",
    )
    resolver.answers["hook.test"] = ["127.0.0.1"]
    healed = loop.post(url)

    assert served.outcome is Outcome.DELIVERED
    assert healed.outcome is Outcome.DELIVERED


def test_shutdown_does_not_wait_for_dns(resolver: Resolver, receiver: Receiver) -> None:
    loop = Loop()
    before = set(threading.enumerate())
    resolver.answers["hook.test"] = ["127.0.0.1"]
    dead = [a_call(f"http://dead-{n}.test/") for n in range(5)]
    for call in dead:
        loop.sender.start(call)
    assert loop.sender.in_flight == 5

    names_threads = set(threading.enumerate()) - before
    aborted = loop.sender.abort_all()
    alive = loop.post(receiver.url(host="hook.test"))
    loop.sender.start(a_call("http://dead.test/"))
    loop.close()  # would not return if it waited for a thread
    resolver.closing.set()  # the threads answer a sender that is gone

    assert all(thread.daemon for thread in names_threads)
    assert sorted(aborted) == [call.key for call in dead]
    assert alive.outcome is Outcome.DELIVERED
