"""The address guard: which addresses a socket is opened to."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from channels_app.rules.addresses import parse_networks
from delivery.rules.outcome import Outcome
from tests.receiver import Receiver
from tests.sending import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    with closing(Loop()) as made:
        yield made


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "localhost",
        "LOCALHOST.",
        "inner.localhost",
    ],
)
@pytest.mark.parametrize("listener", ["127.0.0.1", "::1"])
def test_an_inner_address_is_never_connected_to(host: str, listener: str) -> None:
    with Receiver(host=listener) as consumer, closing(Loop(allowed=())) as loop:
        answer = loop.post(consumer.url(host=host))
        assert consumer.connections == 0

    assert answer.outcome is Outcome.BLOCKED_ADDRESS
    assert answer.remote_address in ("127.0.0.1", "::1", "0.0.0.0", "::ffff:127.0.0.1")
    assert answer.error == f"The address {answer.remote_address} may not be called."


def test_of_a_names_addresses_only_the_allowed_ones_are_tried() -> None:
    with Receiver() as consumer, closing(Loop(allowed=parse_networks("127.0.0.1"))) as loop:
        answer = loop.post(consumer.url(host="both.localhost"))

    # The name also leads to ::1, which is not allowed here.
    assert (answer.outcome, answer.remote_address) == (Outcome.DELIVERED, "127.0.0.1")


def test_the_guard_judges_each_sender_by_its_own_networks() -> None:
    with Receiver(host="::1") as consumer:
        with closing(Loop(allowed=parse_networks("127.0.0.0/8"))) as loop:
            closed = loop.post(consumer.url())
        with closing(Loop(allowed=parse_networks("::1"))) as loop:
            opened = loop.post(consumer.url())

    assert (closed.outcome, closed.remote_address) == (Outcome.BLOCKED_ADDRESS, "::1")
    assert (opened.outcome, opened.remote_address) == (Outcome.DELIVERED, "::1")
