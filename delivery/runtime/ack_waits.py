"""Cache each consumer's adaptive acknowledgement timeout in a pump (S3-30)."""

import time

from channels_app.config_cache import ConsumerConfig
from delivery.rules import acks
from delivery.steps import ack_timeouts

FRESH_S = 5.0
"""Seconds for which a value from the tables is used."""


class Waits:
    """Timeouts of consumers whose ``timeout_ms`` is adaptive; others need no query."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, float]] = {}
        """Milliseconds by consumer, and until when (`time.monotonic`) they are fresh."""
        self._wanted: dict[int, acks.Bounds] = {}

    def of(self, view: ConsumerConfig) -> float | None:
        """Return the timeout in milliseconds; None if it is fixed or not known yet."""
        bounds = acks.bounds_of(view.ack)
        if bounds is None:
            return None
        known_ms, fresh_until = self._known.get(view.id, (bounds.high_ms, 0.0))
        if time.monotonic() >= fresh_until:
            self._wanted[view.id] = bounds
        return min(bounds.high_ms, max(bounds.low_ms, known_ms))

    def learn(self) -> None:
        """Read the timeouts that were requested and are not fresh."""
        while self._wanted:
            consumer_id, bounds = self._wanted.popitem()
            wait_ms = ack_timeouts.wait_ms(consumer_id, bounds)
            self._known[consumer_id] = (wait_ms, time.monotonic() + FRESH_S)
