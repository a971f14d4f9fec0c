"""Generate a month: a broker's tables after five weeks, with the same rows for each seed.

It has real bodies where the machine has them, and a rhythm of days and weeks. Consumers are
healthy, flaky, slow, broken from a known instant on, or registered late. Counters are right. The
month ends at noon: its days, hours and rows are alike at whatever time a test runs.
"""

import random
from collections import Counter as Tally
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from channels_app.core import ids
from channels_app.models import Channel, Consumer, Message, MessageBody, Producer
from delivery.models import Attempt, Counter, Delivery
from delivery.models.counter import MADE
from tests.support.bodies import corpus
from tests.support.factories import ChannelFactory, ConsumerFactory, ProducerFactory

DAYS = 35
ATTEMPTS = 4
"""Failures until a delivery is dead."""


def noon() -> datetime:
    """The latest noon that is at least an hour ago, so that what began before it has ended."""
    now = datetime.now(UTC)
    return (now - timedelta(hours=13)).replace(hour=12, minute=0, second=0, microsecond=0)


@dataclass(slots=True)
class Month:
    """The generated rows."""

    since: datetime
    until: datetime
    """All of the month is older than this."""
    broke_at: datetime
    """From then on `broken` answers 503, with texts that differ only in numbers and ids."""
    joined_at: datetime
    """When `late` is registered."""
    producers: list[Producer] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    """By client id."""
    messages: list[Message] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    bodies: dict[int, bytes] = field(default_factory=dict)
    """By message id; stored unencrypted."""


def make(
    *, messages: int = 1500, seed: int = 6, until: datetime | None = None, days: int = DAYS
) -> Month:
    """Write a month to the tables; ``until`` defaults to the latest noon."""
    until = until or noon()
    month = Month(
        since=until - timedelta(days=days),
        until=until,
        broke_at=until - timedelta(days=3) * days / DAYS,
        joined_at=until - timedelta(days=10),
    )
    _Maker(month, random.Random(seed)).make(messages)
    return month


def make_few_days(messages: int) -> Month:
    """Write four days that are past their retention, so that the archive has few segments.

    No further row becomes eligible during a test; dead letters and waiting rows stay in the tables.
    """
    month = make(messages=messages, until=noon() - timedelta(days=2), days=4)
    Channel.objects.update(retention_days=1)
    return month


class _Maker:
    def __init__(self, month: Month, dice: random.Random) -> None:
        self.month = month
        self.dice = dice
        self.samples = corpus()
        self.places: Tally[int] = Tally()
        """How many keys each millisecond has."""

    def make(self, number: int) -> None:
        """Generate ``number`` messages and store all rows."""
        self._people()
        for at in sorted(self._instant() for _ in range(number)):
            self._message(at)
        month = self.month
        Message.objects.bulk_create(month.messages)
        MessageBody.objects.bulk_create(
            MessageBody(message_id=key, data=data) for key, data in month.bodies.items()
        )
        Delivery.objects.bulk_create(month.deliveries)
        Attempt.objects.bulk_create(month.attempts)
        changes: Tally[tuple[int, str]] = Tally()
        for row in month.deliveries:
            changes[row.consumer_id, row.state] += 1
            changes[row.consumer_id, MADE] += 1
        Counter.add(changes, 0)

    def _people(self) -> None:
        month = self.month
        month.producers = [ProducerFactory.create(slug=slug) for slug in ("shop", "billing")]
        month.channels = [
            ChannelFactory.create(slug="orders", encrypt_bodies=False),
            ChannelFactory.create(slug="invoices", encrypt_bodies=False, retention_days=7),
        ]
        orders, invoices = month.channels
        for name, channel, since in (
            ("steady", orders, month.since),
            ("flaky", orders, month.since),
            ("broken", orders, month.since),
            ("late", orders, month.joined_at),
            ("books", invoices, month.since),
            ("slow", invoices, month.since),
        ):
            month.consumers[name] = ConsumerFactory.create(
                channel=channel,
                client_id=name,
                url=f"http://{name}.example/hook",
                created_at=since,
            )

    def _instant(self) -> datetime:
        """A random instant: more by day than by night, and most on one day of the week."""
        span = self.month.until - self.month.since
        while True:
            at = self.month.since + span * self.dice.random()
            is_monday = (at - self.month.since).days % 7 == 0
            busy = (0.2 if at.hour < 6 else 1.0) * (1.0 if is_monday else 0.5)
            if self.dice.random() < busy:
                return at.replace(microsecond=self.dice.randrange(1_000_000))

    def _key(self, at: datetime) -> int:
        ms = int(at.timestamp() * 1000)
        self.places[ms] += 1
        return ids.first_id_at(ms) + self.places[ms]

    def _message(self, at: datetime) -> None:
        month, dice = self.month, self.dice
        place = len(month.messages)
        sample = self.samples[place % len(self.samples)]
        channel = month.channels[0] if dice.random() < 0.7 else month.channels[1]
        receivers = [
            consumer
            for consumer in month.consumers.values()
            if consumer.channel_id == channel.id and consumer.created_at <= at
        ]
        message = Message(
            id=self._key(at),
            channel=channel,
            producer=month.producers[0 if dice.random() < 0.8 else 1],
            state="dispatched",
            event_type=sample.event[:128],
            priority=dice.choice((2, 4, 4, 4, 9)),
            ordering_key=f"customer-{dice.randrange(40)}",
            idempotency_key=f"key-{place}",
            content_type="application/json",
            body_bytes=len(sample.body),
            accepted_at=at,
            due_at=at,
            consumer_count=len(receivers),
        )
        month.messages.append(message)
        month.bodies[message.id] = sample.body
        for consumer in receivers:
            self._delivery(message, consumer)

    def _delivery(self, message: Message, consumer: Consumer) -> None:
        at = message.accepted_at + timedelta(milliseconds=self.dice.randint(1, 30))
        delivery = Delivery(
            id=self._key(at),
            message=message,
            consumer=consumer,
            channel_id=message.channel_id,
            priority=message.priority,
            event_type=message.event_type,
            ordering_key=message.ordering_key,
            accepted_at=message.accepted_at,
        )
        self.month.deliveries.append(delivery)
        for number in range(1, ATTEMPTS + 1):
            answer = self._answer(consumer.client_id, at)
            ended = at + timedelta(milliseconds=answer["total_ms"])
            self.month.attempts.append(
                Attempt(
                    id=self._key(ended), delivery=delivery, number=number, started_at=at, **answer
                )
            )
            delivery.attempt_count = number
            delivery.outcome, delivery.status_code = answer["outcome"], answer["status_code"]
            delivery.version += 1
            if answer["outcome"] == "delivered":
                self._finish(delivery, "delivered", "delivered", ended)
                return
            delivery.failure_count = number
            at = ended + timedelta(seconds=300 * 4**number)
            if at >= self.month.until:
                delivery.due_at, delivery.reason = at, "retry"
                return
        self._finish(delivery, "dead", "exhausted", ended)

    def _finish(self, delivery: Delivery, state: str, reason: str, at: datetime) -> None:
        delivery.state, delivery.reason, delivery.finished_at = state, reason, at

    def _answer(self, name: str, at: datetime) -> dict[str, Any]:
        """The fields of an attempt at that consumer."""
        dice = self.dice
        took = int(dice.lognormvariate(6.5 if name == "slow" else 3.5, 0.6)) + 1
        good = {"outcome": "delivered", "status_code": 200, "answer_excerpt": b"ok"}
        bad: dict[str, Any] = {}
        if name == "broken" and at >= self.month.broke_at:
            text = f"upstream 10.0.0.{dice.randrange(9)} is away, request {dice.getrandbits(64):x}"
            bad = {"outcome": "unavailable", "status_code": 503, "answer_excerpt": text.encode()}
        elif name == "flaky" and dice.random() < 0.3:
            bad = {"outcome": "server_error", "status_code": 500, "answer_excerpt": b"oops"}
        elif name == "slow" and took > 1500:
            took = 1500
            bad = {"outcome": "timeout", "status_code": None, "error": "no answer in 1500 ms"}
        elif name == "books" and dice.random() < 0.02:
            bad = {"outcome": "client_error", "status_code": 422, "answer_excerpt": b'{"id": 17}'}
        return {"total_ms": took, "connect_ms": 1, "first_byte_ms": took} | (bad or good)
