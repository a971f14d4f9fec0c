"""Fill the broker's tables with history within minutes: for the benchmark, and for the pipeline.

``fill`` creates days of history for the benchmark. One channel has three consumers. ``steady``
received everything, and has one batch of messages waiting and another one scheduled. At ``lost``
every delivery died. ``broken`` has an open circuit and waiting retries.

``fill_month`` creates thirty days of traffic for the jobs of the data pipeline, on MariaDB only.
Eight channels have two consumers each, and there are twenty producers. Consumer ``a`` succeeds at
once. Every second message fails at its first attempt at ``b``, and every 25th of these dies there.
Latencies, responses and errors depend on the message's number, so they are the same each time.
"""

import time
from collections import Counter as Multiset
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from django.core.management import call_command

from bench.adapters import Progress
from bench.internal import rows
from bench.internal.rows import Batch, Columns, RowState, instant
from channels_app.database import clock
from channels_app.models import Channel, Consumer, Message, Producer
from channels_app.registry import data_encryption
from delivery.core.lifecycle import DeliveryState, Reason
from delivery.core.outcome import Outcome
from delivery.maintenance import counters
from delivery.models import Attempt, ConsumerHealth, Counter, Delivery
from delivery.models.counter import MADE

CHANNEL = "history"
FINISHED_FOR = timedelta(days=20)
"""Age of the oldest finished rows, less than retention, which would delete them."""
WAITING_FOR = timedelta(hours=6)
FAILING_FOR = timedelta(hours=12)
SCHEDULED_FOR = timedelta(hours=6)
DELAY = timedelta(days=1)
"""Scheduled messages were published within this period, and are due this long after."""
WAITING_RATE = 0.1
"""Messages per second to ``steady`` once a batch waits for it, so that the batch remains."""
REFUSING_URL = "http://127.0.0.1:9/"
"""Refuses every connection."""
NO_DELAY = timedelta(0)
QUEUED, DELIVERED, DEAD = DeliveryState.QUEUED, DeliveryState.DELIVERED, DeliveryState.DEAD


def fill(progress: Progress, *, url: str, longest: int, **totals: int) -> dict[str, float]:
    """Create messages: numbers of finished, waiting, failing and scheduled ones.

    ``url`` is that of ``steady``; ``longest`` is the highest number of finished messages. Returns
    the seconds that it took and the gap between the counters and the rows.
    """
    call_command("migrate", verbosity=0)
    start = time.monotonic()
    history = History(url, longest=longest)
    kinds = {
        "finished": history.finish,
        "waiting": history.wait,
        "failing": history.fail,
        "scheduled": history.schedule,
    }
    for kind, total in totals.items():
        kinds[kind](total, progress)
    return {"seconds": time.monotonic() - start, "gap": counters.gap()}


class History:
    """Channel, consumers and batches of one database, created once and found again later."""

    def __init__(self, url: str, *, longest: int) -> None:
        channel, is_new = Channel.objects.get_or_create(
            slug=CHANNEL, defaults={"encrypt_bodies": False}
        )
        self.channel_id, self.longest = channel.id, longest
        if is_new:
            _create_consumer(channel, "steady", url)
            _create_consumer(channel, "lost", url, max_attempts=1)
            _create_consumer(channel, "broken", REFUSING_URL)
        found = {row.client_id: row for row in Consumer.objects.filter(channel=channel)}
        self.steady, self.lost, self.broken = found["steady"], found["lost"], found["broken"]
        self.created_ms = int(channel.created_at.timestamp() * 1000)

    def finish(self, total: int, progress: Progress) -> None:
        """Create ``total`` finished messages, delivered to ``steady`` and dead at ``lost``."""
        row_states = (
            RowState(self.steady.id, DELIVERED, Reason.DELIVERED, Outcome.DELIVERED, 200),
            RowState(self.lost.id, DEAD, Reason.EXHAUSTED, Outcome.SERVER_ERROR, 500),
        )
        done = Counter.read([self.lost.id])[self.lost.id][DEAD]  # the only dead letters
        self._batch(1, FINISHED_FOR, self.longest, *row_states).fill(done, total, progress)

    def wait(self, total: int, progress: Progress) -> None:
        """Create ``total`` due messages for ``steady``, and limit its rate."""
        if self._has_batch(self.steady):
            return
        self.steady.rate_per_second = WAITING_RATE
        self.steady.save()
        row_state = RowState(self.steady.id, QUEUED, Reason.ACCEPTED)
        self._batch(2, WAITING_FOR, total, row_state).fill(0, total, progress)

    def fail(self, total: int, progress: Progress) -> None:
        """Create ``total`` overdue retries for ``broken``, whose circuit is open."""
        if self._has_batch(self.broken):
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
        row_state = RowState(self.broken.id, QUEUED, Reason.RETRY, Outcome.CONNECTION_REFUSED)
        self._batch(3, FAILING_FOR, total, row_state).fill(0, total, progress)

    def schedule(self, total: int, progress: Progress) -> None:
        """Create ``total`` messages for ``steady`` that are due tomorrow."""
        row_state = RowState(self.steady.id, QUEUED, Reason.ACCEPTED)
        batch = self._batch(4, SCHEDULED_FOR, total, row_state, delay=DELAY)
        batch.fill(0, total, progress)

    def _has_batch(self, consumer: Consumer) -> bool:
        return Counter.read([consumer.id])[consumer.id][QUEUED] > 0

    def _batch(
        self,
        slot: int,
        span: timedelta,
        longest: int,
        *states: RowState,
        delay: timedelta = NO_DELAY,
    ) -> Batch:
        step_ms = max(1, span // timedelta(milliseconds=longest))
        start_ms = self.created_ms - step_ms * (longest + 1)
        delay_ms = delay // timedelta(milliseconds=1)
        return Batch(slot, self.channel_id, start_ms, step_ms, states, delay_ms)


def _create_consumer(channel: Channel, client_id: str, url: str, **values: Any) -> None:
    consumer = Consumer.objects.create(channel=channel, client_id=client_id, url=url, **values)
    data_encryption.generate_secret(consumer)


CHANNELS, PRODUCERS = 8, 20
MONTH = timedelta(days=30)
MONTH_ENDED = timedelta(hours=3)
"""Age of the last message; all have finished."""
MONTH_SLOT = 14
"""Shard of the counters, and slot of the keys."""
A_TOOK, B_TOOK = "5 + ((n * 7919) %% 1000) DIV 20", "20 + ((n * 104729) %% 1000) DIV 2"
RETRY_MS = 60_000
"""Milliseconds between a failed attempt and the next one."""
FAILURE_COLUMNS = ("outcome", "status_code", "error", "answer_excerpt")
FAILURES = (
    ("'server_error'", "500", "'HTTP 500'", "CONCAT('{\"error\":\"row ', n, ' is locked\"}')"),
    ("'unavailable'", "503", "'HTTP 503'", "CONCAT('upstream 10.0.', n %% 250, '.7 is away')"),
    ("'timeout'", "NULL", "CONCAT('no answer within 15 s from 10.1.', n %% 250, '.9')", "''"),
    (
        "'connection_refused'",
        "NULL",
        "CONCAT('10.2.', n %% 250, '.3 refused the connection')",
        "''",
    ),
)


def fill_month(progress: Progress, *, longest: int, done: int, total: int) -> dict[str, float]:
    """Create messages up to number ``total`` of at most ``longest``; the first ``done`` exist.

    Returns the gap between the counters and the rows.
    """
    call_command("migrate", verbosity=0)
    rows.in_chunks(Month.of(longest).insert, done, total, progress)
    return {"gap": counters.gap()}


@dataclass(frozen=True, slots=True)
class Month:
    channel_id: int
    """Id of the first channel; the others follow."""
    consumer_id: int
    """Id of ``a`` of the first channel; ``a`` of the others follow, then each ``b``."""
    producer_id: int
    start_ms: int
    step_ms: int

    @classmethod
    def of(cls, longest: int) -> Self:
        if not Channel.objects.exists():
            _create_owners()
        first = Channel.objects.earliest("id")
        step_ms = max(2, MONTH // timedelta(milliseconds=longest))
        end_ms = int((first.created_at - MONTH_ENDED).timestamp() * 1000)
        return cls(
            channel_id=first.id,
            consumer_id=Consumer.objects.earliest("id").id,
            producer_id=Producer.objects.earliest("id").id,
            start_ms=end_ms - step_ms * longest,
            step_ms=step_ms,
        )

    def insert(self, first: int, last: int) -> None:
        """Create the messages with these numbers, with deliveries and attempts."""
        source = rows.numbers(first, last)
        accepted_ms = f"({self.start_ms} + n * {self.step_ms})"
        a_ms, b_ms = f"({accepted_ms} + 1)", f"({accepted_ms} + 2)"
        message_id = _key(accepted_ms)
        common: dict[str, str | None] = {
            "channel_id": f"{self.channel_id} + n %% {CHANNELS}",
            "event_type": "ELT(n %% 3 + 1, 'order.paid', 'order.sent', 'user.created')",
            "ordering_key": "CONCAT('customer-', n %% 50000)",
            "priority": "n %% 10",
            "accepted_at": instant(accepted_ms),
        }
        message = {
            "id": message_id,
            "producer_id": f"{self.producer_id} + n %% {PRODUCERS}",
            "state": "'dispatched'",
            "content_type": "'application/json'",
            "body_bytes": f"{len(rows.BODY)}",
            "due_at": instant(accepted_ms),
            "consumer_count": "2",
        }
        rows.insert(Message, common | message, source)
        rows.insert_bodies(message_id, source)
        common["message_id"] = message_id
        rows.insert(Delivery, {**common, **self._delivery(a_ms, is_b=False)}, source)
        rows.insert(Delivery, {**common, **self._delivery(b_ms, is_b=True)}, source)
        even, odd = f"{source} WHERE n %% 2 = 0", f"{source} WHERE n %% 2 = 1"
        rows.insert(Attempt, _attempt(a_ms, A_TOOK, 1, None), source)
        rows.insert(Attempt, _attempt(b_ms, B_TOOK, 1, None), odd)
        rows.insert(Attempt, _attempt(b_ms, B_TOOK, 1, "TRUE"), even)
        rows.insert(Attempt, _attempt(b_ms, B_TOOK, 2, "n %% 50 = 0"), even)
        changes: Multiset[tuple[int, str]] = Multiset()
        for number in range(first, last + 1):
            a_id = self.consumer_id + number % CHANNELS
            changes.update([(a_id, "delivered"), (a_id, MADE), (a_id + CHANNELS, MADE)])
            changes[a_id + CHANNELS, "dead" if number % 50 == 0 else "delivered"] += 1
        Counter.add(changes, MONTH_SLOT)

    def _delivery(self, at_ms: str, *, is_b: bool) -> Columns:
        is_retried, is_dead = ("n %% 2 = 0", "n %% 50 = 0") if is_b else ("FALSE", "FALSE")
        first_id, took = (
            (self.consumer_id + CHANNELS, B_TOOK) if is_b else (self.consumer_id, A_TOOK)
        )
        return {
            "id": _key(at_ms),
            "consumer_id": f"{first_id} + n %% {CHANNELS}",
            "state": f"IF({is_dead}, 'dead', 'delivered')",
            "reason": f"IF({is_dead}, 'exhausted', 'delivered')",
            "outcome": f"IF({is_dead}, {_failure('outcome')}, 'delivered')",
            "status_code": f"IF({is_dead}, {_failure('status_code')}, 200)",
            "attempt_count": f"IF({is_retried}, 2, 1)",
            "failure_count": f"IF({is_dead}, 2, IF({is_retried}, 1, 0))",
            "due_at": None,
            "finished_at": instant(f"{at_ms} + IF({is_retried}, {RETRY_MS}, 0) + {took}"),
        }


def _attempt(at_ms: str, took: str, number: int, failed: str | None) -> Columns:
    """Return one attempt of each delivery; ``failed`` is the SQL condition of failed ones."""
    started_ms = at_ms if number == 1 else f"({at_ms} + {RETRY_MS})"
    values = {
        # A slot for each kind of attempt, since two may end in the same millisecond.
        "id": _key(f"({started_ms} + {took})", number + (took == B_TOOK)),
        "delivery_id": _key(at_ms),
        "number": f"{number}",
        "started_at": instant(started_ms),
        "outcome": "'delivered'",
        "status_code": "200",
        "error": "''",
        "answer_headers": f"'{rows.ANSWER_HEADERS}'",
        "answer_excerpt": "''",
        "total_ms": took,
        "worker": "'month'",
    }
    if failed is not None:
        for name in FAILURE_COLUMNS:
            values[name] = f"IF({failed}, {_failure(name)}, {values[name]})"
    return values


def _failure(column: str) -> str:
    """Return a column of message n's failure. Only every second one fails, hence the division."""
    choices = ", ".join(failure[FAILURE_COLUMNS.index(column)] for failure in FAILURES)
    return f"ELT((n DIV 2) %% {len(FAILURES)} + 1, {choices})"


def _key(ms: str, number: int = 0) -> str:
    """Return the key of an instant; rows of the same millisecond differ by the message's number."""
    return f"({rows.key(ms, MONTH_SLOT + number)} + n %% 4096)"


def _create_owners() -> None:
    channels = [
        Channel.objects.create(slug=f"month-{number}", encrypt_bodies=False)
        for number in range(CHANNELS)
    ]
    for name in ("a", "b"):
        for number, channel in enumerate(channels):
            _create_consumer(channel, name, f"https://{name}{number}.example.com/hook")
    for number in range(PRODUCERS):
        Producer.objects.create(slug=f"producer-{number}")
    Consumer.objects.update(created_at=clock.now() - MONTH - MONTH_ENDED)
