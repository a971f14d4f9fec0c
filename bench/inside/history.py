"""Fill the broker's tables with days of history within minutes.

One channel has three consumers. ``steady`` received everything, and has one batch of messages
waiting and another one scheduled. At ``lost`` every delivery died. ``broken`` has an open circuit
and waiting retries.
"""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.core.management import call_command

from bench.flow import Tell
from bench.inside.batches import Batch, RowState, fill
from channels_app.database import clock
from channels_app.models import Channel, Consumer
from channels_app.registry import data_encryption
from delivery.core.lifecycle import DeliveryState, Reason
from delivery.core.outcome import Outcome
from delivery.maintenance import counters
from delivery.models import ConsumerHealth, Counter

CHANNEL = "history"
FINISHED_FOR = timedelta(days=20)
"""Age of the oldest finished rows, less than retention, which would delete them."""
WAITING_FOR = timedelta(hours=6)
FAILING_FOR = timedelta(hours=12)
SCHEDULED_FOR = timedelta(hours=6)
DELAY = timedelta(days=1)
"""Scheduled messages were published within this period, and are due this long after."""
PACE = 0.1
"""Messages per second to ``steady`` once a batch waits for it, so that the batch remains."""
NOWHERE = "http://127.0.0.1:9/"
"""Refuses every connection."""


def main(arguments: Sequence[str], tell: Tell) -> dict[str, float]:
    """``URL MOST FINISHED WAITING FAILING SCHEDULED``: create so many of each; 0 changes nothing.

    Returns the seconds that it took and the accounting gap.
    """
    url, *numbers = arguments
    most, finished, waiting, failing, scheduled = map(int, numbers)
    call_command("migrate", verbosity=0)
    start = time.monotonic()
    history = History(url, most=most)
    if finished:
        history.finish(finished, tell)
    if waiting:
        history.wait(waiting, tell)
    if failing:
        history.fail(failing, tell)
    if scheduled:
        history.schedule(scheduled, tell)
    return {"seconds": time.monotonic() - start, "gap": counters.gap()}


class History:
    """Channel, consumers and batches of one database, created once and found again later."""

    def __init__(self, url: str, *, most: int) -> None:
        """``url`` is that of ``steady``; ``most`` is the highest number of finished messages."""
        channel, is_new = Channel.objects.get_or_create(
            slug=CHANNEL, defaults={"encrypt_bodies": False}
        )
        self.channel_id = channel.id
        self.most = most
        if is_new:
            _consumer(channel, "steady", url)
            _consumer(channel, "lost", url, max_attempts=1)
            _consumer(channel, "broken", NOWHERE)
        found = {row.client_id: row for row in Consumer.objects.filter(channel=channel)}
        self.steady, self.lost, self.broken = found["steady"], found["lost"], found["broken"]
        self.made_ms = int(channel.created_at.timestamp() * 1000)

    def finish(self, total: int, tell: Tell) -> None:
        """Create ``total`` finished messages, delivered to ``steady`` and dead at ``lost``."""
        row_states = (
            RowState(self.steady.id, _S.DELIVERED, Reason.DELIVERED, Outcome.DELIVERED, 200),
            RowState(self.lost.id, _S.DEAD, Reason.EXHAUSTED, Outcome.SERVER_ERROR, 500),
        )
        done = Counter.read([self.lost.id])[self.lost.id][_S.DEAD]  # the only dead letters
        fill(self._batch(1, FINISHED_FOR, self.most, row_states), done, total, tell)

    def wait(self, total: int, tell: Tell) -> None:
        """Create ``total`` due messages for ``steady``, and limit its rate."""
        if self._waits(self.steady):
            return
        self.steady.rate_per_second = PACE
        self.steady.save()
        row_state = RowState(self.steady.id, _S.QUEUED, Reason.ACCEPTED)
        fill(self._batch(2, WAITING_FOR, total, (row_state,)), 0, total, tell)

    def fail(self, total: int, tell: Tell) -> None:
        """Create ``total`` overdue retries for ``broken``, whose circuit is open."""
        if self._waits(self.broken):
            return
        now = clock.now()
        ConsumerHealth.objects.create(
            consumer=self.broken,
            circuit=ConsumerHealth.Circuit.OPEN,
            consecutive_failures=20,
            opened_count=8,
            next_probe_at=now + timedelta(minutes=5),
            failing_since=now - FAILING_FOR,
            last_failure_at=now,
            last_outcome=Outcome.CONNECTION_REFUSED.value,
        )
        row_state = RowState(self.broken.id, _S.QUEUED, Reason.RETRY, Outcome.CONNECTION_REFUSED)
        fill(self._batch(3, FAILING_FOR, total, (row_state,)), 0, total, tell)

    def schedule(self, total: int, tell: Tell) -> None:
        """Create ``total`` messages for ``steady`` that are due tomorrow."""
        row_state = RowState(self.steady.id, _S.QUEUED, Reason.ACCEPTED)
        fill(self._batch(4, SCHEDULED_FOR, total, (row_state,), DELAY), 0, total, tell)

    def _waits(self, consumer: Consumer) -> bool:
        """Whether a batch waits already."""
        return Counter.read([consumer.id])[consumer.id][_S.QUEUED] > 0

    def _batch(
        self,
        slot: int,
        span: timedelta,
        most: int,
        row_states: tuple[RowState, ...],
        delay: timedelta = timedelta(0),
    ) -> Batch:
        step_ms = max(1, span // timedelta(milliseconds=most))
        start_ms = self.made_ms - step_ms * (most + 1)
        delay_ms = delay // timedelta(milliseconds=1)
        return Batch(slot, self.channel_id, start_ms, step_ms, row_states, delay_ms)


_S = DeliveryState


def _consumer(channel: Channel, client_id: str, url: str, **values: Any) -> None:
    consumer = Consumer.objects.create(channel=channel, client_id=client_id, url=url, **values)
    data_encryption.generate_secret(consumer)
