"""Create thirty days of traffic for the jobs of the data pipeline, on MariaDB only.

Eight channels have two consumers each, and there are twenty producers. Consumer ``a`` succeeds at
once. Every second message fails at its first attempt at ``b``, and every 25th of these dies there.
Latencies, responses and errors depend on the message's number, so they are the same each time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.core.management import call_command

from bench.bodies import body
from bench.flow import Tell
from bench.inside import batches, sql
from channels_app.conf import keyring
from channels_app.database import clock
from channels_app.models import Channel, Consumer, Message, MessageBody, Producer
from channels_app.registry import data_encryption
from delivery.maintenance import counters
from delivery.models import Attempt, Counter, Delivery
from delivery.models.counter import MADE

CHANNELS, PRODUCERS = 8, 20
DAYS = timedelta(days=30)
UNTIL = timedelta(hours=3)
"""Age of the last message; all have finished."""
SLOT = 14
"""Shard of the counters, and slot of the keys."""
BODY = body(0, 256)
A_TOOK, B_TOOK = "5 + ((n * 7919) %% 1000) DIV 20", "20 + ((n * 104729) %% 1000) DIV 2"
AGAIN_MS = 60_000
"""Milliseconds between a failed attempt and the next one."""
FAILED = (
    ("'server_error'", "500", "'HTTP 500'", "CONCAT('{\"error\":\"row ', n, ' is locked\"}')"),
    ("'unavailable'", "503", "'HTTP 503'", "CONCAT('upstream 10.0.', n %% 250, '.7 is away')"),
    ("'timeout'", None, "CONCAT('no answer within 15 s from 10.1.', n %% 250, '.9')", "''"),
    ("'connection_refused'", None, "CONCAT('10.2.', n %% 250, '.3 refused the connection')", "''"),
)
"""Failures of attempts: outcome, status code, error, beginning of the response."""


def main(arguments: Sequence[str], tell: Tell) -> dict[str, float]:
    """``MOST DONE TOTAL``: create messages up to number ``TOTAL`` of at most ``MOST``.

    Returns the accounting gap.
    """
    most, done, total = map(int, arguments)
    call_command("migrate", verbosity=0)
    month = Month.of(most)
    batches.in_chunks(month.make, done, total, tell)
    return {"gap": counters.gap()}


@dataclass(frozen=True, slots=True)
class Month:
    """Owners of the messages, and when the first one was accepted."""

    channel_id: int
    """Id of the first channel; the others follow."""
    consumer_id: int
    """Id of ``a`` of the first channel; ``a`` of the others follow, then each ``b``."""
    producer_id: int
    start_ms: int
    step_ms: int

    @classmethod
    def of(cls, most: int) -> "Month":
        """Create it at the first call, and find it again later."""
        if not Channel.objects.exists():
            _register()
        first = Channel.objects.earliest("id")
        step_ms = max(2, DAYS // timedelta(milliseconds=most))
        end_ms = int((first.created_at - UNTIL).timestamp() * 1000)
        return cls(
            channel_id=first.id,
            consumer_id=Consumer.objects.earliest("id").id,
            producer_id=Producer.objects.earliest("id").id,
            start_ms=end_ms - step_ms * most,
            step_ms=step_ms,
        )

    def make(self, first: int, last: int) -> None:
        """Create the messages with these numbers, with deliveries and attempts."""
        source = sql.numbers(first, last)
        accepted_ms = f"({self.start_ms} + n * {self.step_ms})"
        message_id = _key(accepted_ms)
        common: dict[str, str | None] = {
            "channel_id": f"{self.channel_id} + n %% {CHANNELS}",
            "event_type": "ELT(n %% 3 + 1, 'order.paid', 'order.sent', 'user.created')",
            "ordering_key": "CONCAT('customer-', n %% 50000)",
            "priority": "n %% 10",
            "accepted_at": sql.instant(accepted_ms),
        }
        message = {
            "id": message_id,
            "producer_id": f"{self.producer_id} + n %% {PRODUCERS}",
            "state": "'dispatched'",
            "content_type": "'application/json'",
            "body_bytes": f"{len(BODY)}",
            "due_at": sql.instant(accepted_ms),
            "consumer_count": "2",
        }
        sql.insert(Message, common | message, source)
        stored = sql.binary(keyring().plain(BODY))
        sql.insert(MessageBody, {"message_id": message_id, "data": stored}, source)
        for place in (0, 1):
            at_ms = f"({accepted_ms} + {place + 1})"
            own = self._delivery(place, at_ms, message_id)
            sql.insert(Delivery, common | own, source)
        sql.insert(Attempt, _attempt(f"({accepted_ms} + 1)", A_TOOK, 1, None), source)
        self._attempts_at_b(f"({accepted_ms} + 2)", first, last)
        self._count(first, last)

    def _delivery(self, place: int, at_ms: str, message_id: str) -> dict[str, str | None]:
        is_retried = "n %% 2 = 0" if place else "FALSE"
        dead = "n %% 50 = 0" if place else "FALSE"
        took = B_TOOK if place else A_TOOK
        ended = sql.instant(f"{at_ms} + IF({is_retried}, {AGAIN_MS}, 0) + {took}")
        return {
            "id": _key(at_ms),
            "message_id": message_id,
            "consumer_id": f"{self.consumer_id + place * CHANNELS} + n %% {CHANNELS}",
            "state": f"IF({dead}, 'dead', 'delivered')",
            "reason": f"IF({dead}, 'exhausted', 'delivered')",
            "outcome": f"IF({dead}, {_failure(0)}, 'delivered')",
            "status_code": f"IF({dead}, {_failure(1)}, 200)",
            "attempt_count": f"IF({is_retried}, 2, 1)",
            "failure_count": f"IF({dead}, 2, IF({is_retried}, 1, 0))",
            "due_at": None,
            "finished_at": ended,
        }

    def _attempts_at_b(self, at_ms: str, first: int, last: int) -> None:
        every = sql.numbers(first, last)
        even, odd = f"{every} WHERE n %% 2 = 0", f"{every} WHERE n %% 2 = 1"
        sql.insert(Attempt, _attempt(at_ms, B_TOOK, 1, None), odd)
        sql.insert(Attempt, _attempt(at_ms, B_TOOK, 1, "TRUE"), even)
        sql.insert(Attempt, _attempt(at_ms, B_TOOK, 2, "n %% 50 = 0"), even)

    def _count(self, first: int, last: int) -> None:
        changes: dict[tuple[int, str], int] = {}
        for number in range(first, last + 1):
            for place in (0, 1):
                consumer_id = self.consumer_id + place * CHANNELS + number % CHANNELS
                state = "dead" if place and number % 50 == 0 else "delivered"
                for what in (state, MADE):
                    changes[consumer_id, what] = changes.get((consumer_id, what), 0) + 1
        Counter.add(changes, SLOT)


def _attempt(at_ms: str, took: str, number: int, failed: str | None) -> dict[str, str | None]:
    """Return one attempt of each delivery; ``failed`` is the SQL condition of failed ones."""
    started_ms = at_ms if number == 1 else f"({at_ms} + {AGAIN_MS})"
    values: dict[str, str | None] = {
        # A slot for each kind of attempt, since two may end in the same millisecond.
        "id": _key(f"({started_ms} + {took})", number + (took == B_TOOK)),
        "delivery_id": _key(at_ms),
        "number": f"{number}",
        "started_at": sql.instant(started_ms),
        "outcome": "'delivered'",
        "status_code": "200",
        "error": "''",
        "answer_headers": f"'{batches.ANSWER_HEADERS}'",
        "answer_excerpt": "''",
        "total_ms": took,
        "worker": "'month'",
    }
    if failed is not None:
        for name, place in (
            ("outcome", 0),
            ("status_code", 1),
            ("error", 2),
            ("answer_excerpt", 3),
        ):
            values[name] = f"IF({failed}, {_failure(place)}, {values[name]})"
    return values


def _failure(place: int) -> str:
    """Return a column of message n's failure. Only every second one fails, hence the division."""
    return f"ELT((n DIV 2) %% {len(FAILED)} + 1, {', '.join(it[place] or 'NULL' for it in FAILED)})"


def _key(ms: str, number: int = 0) -> str:
    """Return the key of an instant; rows of the same millisecond differ by the message's number."""
    return f"({sql.key(ms, SLOT + number)} + n %% 4096)"


def _register() -> None:
    channels = [
        Channel.objects.create(slug=f"month-{number}", encrypt_bodies=False)
        for number in range(CHANNELS)
    ]
    for name in ("a", "b"):
        for number, channel in enumerate(channels):
            url = f"https://{name}{number}.example.com/hook"
            data_encryption.generate_secret(
                Consumer.objects.create(channel=channel, client_id=name, url=url)
            )
    for number in range(PRODUCERS):
        Producer.objects.create(slug=f"producer-{number}")
    Consumer.objects.update(created_at=clock.now() - DAYS - UNTIL)
