"""Create many similar rows in the database, a range of numbers in one statement.

Keys are ordered by time, as the application generates them, and the counters change in the
transaction that creates the rows. So the result is as if the broker had written them.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from django.db import connection, transaction

from bench.bodies import body
from bench.flow import Tell
from bench.inside import sql
from channels_app.conf import keyring
from channels_app.models import Message, MessageBody
from delivery.core.lifecycle import FINISHED, DeliveryState, Reason
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Counter, Delivery
from delivery.models.counter import MADE

EVENT_TYPE = "order.paid"
BODY = body(0, 256)
ANSWER_HEADERS = "content-type: text/plain; content-length: 2; server: sink"
TOOK_MS = 12
SLOT = 13
"""Shard of the counters that no other process writes."""
CHUNK = 10_000
"""Messages created in one transaction."""
THREADS = 2
WRITE_AT_ONCE = {
    "innodb_io_capacity_max": 20_000,
    "innodb_io_capacity": 20_000,
    "innodb_max_dirty_pages_pct": 0,
}
QUIET_PAGES = 1_000
"""Maximum dirty pages in the buffer pool of an idle server."""
QUIET_S = 120.0

Chunks = Sequence[tuple[int, int]]
Make = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class RowState:
    """State of a batch's deliveries at one consumer."""

    consumer_id: int
    state: DeliveryState
    reason: Reason
    outcome: Outcome | None = None
    """None before the first attempt."""
    status: int | None = None

    @property
    def is_charged(self) -> bool:
        """Whether its attempt counts against the budget."""
        return self.outcome is not None and self.outcome.charged


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages at equal intervals, each with a delivery at every consumer of ``row_states``.

    Number n, from 1 on, is accepted ``n * step_ms`` after ``start_ms``, in Unix milliseconds.
    """

    slot: int
    """The slot within its keys, different for each batch."""
    channel_id: int
    start_ms: int
    step_ms: int
    row_states: tuple[RowState, ...]
    delay_ms: int = 0
    """Each is due so many milliseconds after it was accepted."""


def fill(batch: Batch, done: int, total: int, tell: Tell) -> None:
    """Create the numbers above ``done`` up to ``total``, a chunk in each transaction."""
    in_chunks(partial(_make, batch), done, total, tell)


def in_chunks(make: Make, done: int, total: int, tell: Tell) -> None:
    """Call ``make`` in a transaction with the first and the last number of each chunk."""
    chunks = [(first, min(first + CHUNK - 1, total)) for first in range(done + 1, total + 1, CHUNK)]
    made = Tally(done, total, tell)
    if connection.vendor == "sqlite":  # SQLite has one writer
        _make_all(make, chunks, made)
        return
    with _fast_writes(), ThreadPoolExecutor(THREADS) as pool:
        parts = [
            pool.submit(_make_in_thread, make, chunks[thread::THREADS], made)
            for thread in range(THREADS)
        ]
        for part in parts:
            part.result()


@dataclass(slots=True)
class Tally:
    """Progress of all threads together."""

    done: int
    total: int
    tell: Tell
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        """Add to the number of created messages."""
        with self.lock:
            self.done += count
            self.tell(self.done, self.total)


def _make_in_thread(make: Make, chunks: Chunks, made: Tally) -> None:
    try:
        _make_all(make, chunks, made)
    finally:
        connection.close()


def _make_all(make: Make, chunks: Chunks, made: Tally) -> None:
    for first, last in chunks:
        with transaction.atomic():
            make(first, last)
        made.add(last - first + 1)


def _make(batch: Batch, first: int, last: int) -> None:
    source, number = sql.numbers(first, last), last - first + 1
    accepted_ms = f"{batch.start_ms} + n * {batch.step_ms}"
    accepted_at, message_id = sql.instant(accepted_ms), sql.key(accepted_ms, batch.slot)
    common = {
        "channel_id": f"{batch.channel_id}",
        "event_type": f"'{EVENT_TYPE}'",
        "priority": "n %% 10",
        "accepted_at": accepted_at,
        "due_at": sql.instant(f"{accepted_ms} + {batch.delay_ms}"),
    }
    message = {
        "id": message_id,
        "state": "'dispatched'",
        "content_type": "'application/json'",
        "body_bytes": f"{len(BODY)}",
        "consumer_count": f"{len(batch.row_states)}",
    }
    sql.insert(Message, common | message, source)
    stored = sql.binary(keyring().plain(BODY))
    sql.insert(MessageBody, {"message_id": message_id, "data": stored}, source)
    changes: dict[tuple[int, str], int] = {}
    for place, row_state in enumerate(batch.row_states, start=1):
        # Shift each consumer's deliveries by a millisecond, so that their keys differ.
        at_ms = f"{accepted_ms} + {place}"
        sql.insert(Delivery, common | _delivery(row_state, at_ms, batch, message_id), source)
        if row_state.outcome is not None:
            sql.insert(Attempt, _attempt(row_state, at_ms, batch), source)
        changes[row_state.consumer_id, row_state.state.value] = number
        changes[row_state.consumer_id, MADE] = number
    Counter.add(changes, SLOT)


def _delivery(
    row_state: RowState, at_ms: str, batch: Batch, message_id: str
) -> dict[str, str | None]:
    tried = "0" if row_state.outcome is None else "1"
    ended = row_state.state in FINISHED
    values: dict[str, str | None] = {
        "id": sql.key(at_ms, batch.slot),
        "message_id": message_id,
        "consumer_id": f"{row_state.consumer_id}",
        "state": f"'{row_state.state.value}'",
        "reason": f"'{row_state.reason.value}'",
        "outcome": f"'{row_state.outcome.value if row_state.outcome else ''}'",
        "status_code": f"{row_state.status}" if row_state.status else None,
        "attempt_count": tried,
        "failure_count": "1" if row_state.is_charged else "0",
        "finished_at": sql.instant(f"{at_ms} + {TOOK_MS}") if ended else None,
    }
    return values | ({"due_at": None} if ended else {})


def _attempt(row_state: RowState, at_ms: str, batch: Batch) -> dict[str, str | None]:
    assert row_state.outcome is not None
    return {
        "id": sql.key(f"{at_ms} + {TOOK_MS}", batch.slot),
        "delivery_id": sql.key(at_ms, batch.slot),
        "number": "1",
        "started_at": sql.instant(at_ms),
        "outcome": f"'{row_state.outcome.value}'",
        "status_code": f"{row_state.status}" if row_state.status else None,
        "answer_headers": f"'{ANSWER_HEADERS}'",
        "total_ms": f"{TOOK_MS}",
        "worker": "'history'",
    }


@contextmanager
def _fast_writes() -> Iterator[None]:
    """Let the server write dirty pages as fast as the disk can, and wait until they are written.

    By default the server would write them slowly, during the next measurement. For the same reason
    it updates the tables' statistics now.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(f'@@{name}' for name in WRITE_AT_ONCE)}")
        former = dict(zip(WRITE_AT_ONCE, cursor.fetchone(), strict=True))
        for name, value in WRITE_AT_ONCE.items():
            cursor.execute(f"SET GLOBAL {name} = {value}")
        try:
            yield
            for model in (Message, MessageBody, Delivery, Attempt):
                cursor.execute(f"ANALYZE TABLE {model._meta.db_table}")
                cursor.fetchall()
            end = time.monotonic() + QUIET_S
            while _dirty_pages() > QUIET_PAGES and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            for name, value in reversed(former.items()):
                cursor.execute(f"SET GLOBAL {name} = {value}")


def _dirty_pages() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")
        return int(cursor.fetchone()[1])
