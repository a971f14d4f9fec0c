"""Waiting for an event that a signal handler sets."""

import signal
import threading
from collections.abc import Iterator

import pytest
from hookstation_client.stopping import wait_until_set


@pytest.fixture
def event() -> Iterator[threading.Event]:
    """An event that the handler of SIGUSR1 sets."""
    event = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: event.set())
    yield event
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_another_thread_takes_ends_the_wait(event: threading.Event) -> None:
    missed = list[str]()

    def end_the_wait() -> None:
        missed.append("the handler did not run")
        event.set()

    rescue = threading.Timer(30, end_the_wait)
    rescue.start()
    taker = threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
    taker.start()

    assert wait_until_set(event)

    rescue.cancel()
    assert missed == []


def test_a_wait_ends_when_its_time_has_passed(event: threading.Event) -> None:
    assert not wait_until_set(event, 0.01)
