"""Run a real pump in the test's own process, round by round until a condition is true."""

import itertools
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from channels_app.ingest import accept
from channels_app.ingest.accept import Publication
from channels_app.models import Channel, Consumer
from channels_app.registry.cache import ChannelConfig, config_cache
from delivery.models import Counter, Delivery
from delivery.models.counter import COUNTED, MADE
from delivery.processes import registration
from delivery.processes.wakeups import Listener
from delivery.pump.pump import Pump
from tests.support.factories import ChannelFactory, ConsumerFactory

SECRET = b"0123456789abcdef0123456789abcdef"
POLL_S = 0.02
"""Maximum seconds that a pump in a test waits before it checks whether to stop."""
_numbers = itertools.count(1)


def make_channel(**values: Any) -> Channel:
    """Create a channel with a unique name."""
    return ChannelFactory.create(**values)


def make_consumer(channel: Channel, url: str, **values: Any) -> Consumer:
    """Create a push consumer that signs with SECRET and retries almost at once."""
    defaults = {"retry": [0.01], "max_attempts": 3, "secret": f"whsec_{b64encode(SECRET).decode()}"}
    return ConsumerFactory.create(channel=channel, url=url, **(defaults | values))


def view_of(channel: Channel) -> ChannelConfig:
    """Return the channel's present configuration."""
    config_cache.refresh(now=True)
    view = config_cache.channel(channel.slug)
    assert view is not None
    return view


def publish(channel: Channel, *bodies: bytes, **options: Any) -> list[int]:
    """Accept messages; returns their ids."""
    publications = [Publication(body=body, **options) for body in bodies]
    return [result.message_id for result in accept.accept(view_of(channel), None, publications)]


@contextmanager
def pumping() -> Iterator[Pump]:
    """Provide a pump that owns every consumer, and close it at the end."""
    listener = Listener()
    held = registration.acquire(f"test-{next(_numbers)}", "pump", 1, listener.address)
    assert held is not None
    pump = Pump(held, listener)
    try:
        yield pump
    finally:
        pump.drain(0.0)
        pump.close()
        registration.leave(held)


@contextmanager
def brisk(pump: Pump) -> Iterator[None]:
    """Make a pump poll every few milliseconds.

    Otherwise an idle pump waits half a second for its next poll, and so does the test.
    """
    max_wait_s = pump._max_wait_s
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pump, "_max_wait_s", lambda: min(max_wait_s(), POLL_S))
        yield


def pump_until(pump: Pump, done: Callable[[], bool], seconds: float = 120.0) -> None:
    """Run rounds until ``done``; fails after ``seconds``."""
    end = time.monotonic() + seconds
    with brisk(pump):
        while not done():
            assert time.monotonic() < end, f"not reached; counters: {Counter.totals()}"
            pump.next_poll = 0.0  # so that the test does not wait for the next poll
            pump.round()


def pump_rounds(pump: Pump, count: int) -> None:
    """Run that many rounds, each of which polls and refreshes the configuration.

    None rests after a large result of the one before.
    """
    with brisk(pump):
        for _ in range(count):
            pump.next_scan = pump.next_poll = pump.membership.next_beat = 0.0
            pump.round()


def all_finished() -> bool:
    """Whether all deliveries are finished."""
    return (
        Delivery.objects.exists()
        and not Delivery.objects.exclude(state__in=["delivered", "dead", "cancelled"]).exists()
    )


def recounted(consumers: Sequence[int] | None = None) -> dict[str, int]:
    """Return counts by state from the rows, to compare with Counter.totals."""
    rows = Delivery.objects.all()
    if consumers is not None:
        rows = rows.filter(consumer_id__in=consumers)
    states = list(rows.values_list("state", flat=True))
    return {state: states.count(state) for state in COUNTED if state != MADE} | {MADE: len(states)}
