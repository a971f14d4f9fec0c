"""The address guard: the addresses to which a socket may be opened."""

import re
import socket
from contextlib import closing
from typing import Any

import pytest

from channels_app.core.networks import parse_networks
from delivery.core.outcome import Outcome
from tests.support.receiver import Receiver
from tests.support.sending import Loop, a_call
from tests.unit.channels_app.test_addresses import INNER_HOSTS

NAMES = (".local", ".internal", "0x")
"""Endings of hosts that would be looked up, since their last label is no number."""


@pytest.mark.parametrize("listener", ["127.0.0.1", "::1"])
def test_a_private_address_is_never_connected_to(listener: str) -> None:
    hosts = (
        *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "[::1]"),
        *("[::ffff:127.0.0.1]", "localhost", "LOCALHOST.", "inner.localhost"),
    )
    addresses = {"127.0.0.1", "::1", "0.0.0.0", "::ffff:127.0.0.1"}
    with Receiver(host=listener) as consumer, closing(Loop(allowed=())) as loop:
        answers = loop.run(*(a_call(consumer.url(host=host)) for host in hosts))
        assert consumer.connections == 0

    for host, answer in zip(hosts, answers, strict=True):
        assert answer.outcome is Outcome.BLOCKED_ADDRESS, host
        assert answer.remote_address in addresses, host
        assert answer.error == f"The address {answer.remote_address} is not allowed."


def test_only_allowed_addresses_of_a_host_name_are_tried() -> None:
    with Receiver() as consumer, closing(Loop(allowed=parse_networks("127.0.0.1"))) as loop:
        answer = loop.post(consumer.url(host="both.localhost"))

    # The name also resolves to ::1, which is not allowed here.
    assert (answer.outcome, answer.remote_address) == (Outcome.DELIVERED, "127.0.0.1")


def test_each_sender_has_its_own_allowed_networks() -> None:
    with Receiver(host="::1") as consumer:
        with closing(Loop(allowed=parse_networks("127.0.0.0/8"))) as loop:
            closed = loop.post(consumer.url())
        with closing(Loop(allowed=parse_networks("::1"))) as loop:
            opened = loop.post(consumer.url())

    assert (closed.outcome, closed.remote_address) == (Outcome.BLOCKED_ADDRESS, "::1")
    assert (opened.outcome, opened.remote_address) == (Outcome.DELIVERED, "::1")


@pytest.mark.trap("a webhook into the private network")
def test_no_notation_of_a_private_host_is_connected_to() -> None:
    """Hosts that registration refuses are blocked again: older consumers may predate its rules."""
    hosts = [host for host in INNER_HOSTS if not host.rstrip(".").endswith(NAMES)]
    with closing(Loop(allowed=())) as loop:
        answers = loop.run(*(a_call(f"http://{host}:9/") for host in hosts))

    outcomes = dict(zip(hosts, (answer.outcome for answer in answers), strict=True))
    assert outcomes == dict.fromkeys(hosts, Outcome.BLOCKED_ADDRESS)


@pytest.mark.trap("a webhook into the private network")
def test_no_host_name_leads_to_a_private_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of a name decides where it resolves, now and at the next attempt."""
    inner = [
        host.strip("[]")
        for host in INNER_HOSTS
        if host.startswith("[") or re.fullmatch(r"([1-9]\d*|0)(\.([1-9]\d*|0)){3}", host)
    ]
    leads = {f"hook-{number}.test": ip for number, ip in enumerate(inner)}

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(0, 0, 0, "", (leads[host], port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with closing(Loop(allowed=())) as loop:
        answers = loop.run(*(a_call(f"http://{name}:9/") for name in leads))

    assert len(answers) > 40
    assert {answer.outcome for answer in answers} == {Outcome.BLOCKED_ADDRESS}
