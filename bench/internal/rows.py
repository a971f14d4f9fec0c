"""Create many similar rows in the database, a range of numbers in one statement.

Keys are ordered by time, as the application generates them, and the counters change in the
transaction that creates the rows. So the result is as if the broker had written them.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import connection, transaction
from django.db.models import Field, Model

from bench.adapters import Progress, body
from channels_app.conf import keyring
from channels_app.core import ids
from channels_app.models import Message, MessageBody
from delivery.core.lifecycle import FINISHED, DeliveryState, Reason
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Counter, Delivery
from delivery.models.counter import MADE

TIME_SHIFT = 22
SLOT_SHIFT = 12
"""Bit positions of the instant and of the slot in a key (channels_app/core/ids.py)."""
NUMBERS = {
    # The sequence engine of MariaDB, which MySQL lacks.
    "mysql": "(SELECT seq AS n FROM seq_{first}_to_{last}) AS numbers",
    "sqlite": "(WITH RECURSIVE numbers(n) AS (VALUES({first}) UNION ALL SELECT n + 1"
    " FROM numbers WHERE n < {last}) SELECT n FROM numbers) AS numbers",
}
INSTANT = {
    "mysql": "TIMESTAMPADD(MICROSECOND, ({ms}) * 1000, TIMESTAMP'1970-01-01 00:00:00')",
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f000', ({ms}) / 1000.0, 'unixepoch')",
}
CHUNK = 10_000
"""Messages created in one transaction."""
THREADS = 2
FAST_WRITES = {
    "innodb_io_capacity_max": 20_000,
    "innodb_io_capacity": 20_000,
    "innodb_max_dirty_pages_pct": 0,
}
IDLE_DIRTY_PAGES = 1_000
"""Maximum dirty pages in the buffer pool of an idle server."""
MAX_WRITING_S = 120.0
EVENT_TYPE = "order.paid"
BODY = body(0, 256)
ANSWER_HEADERS = "content-type: text/plain; content-length: 2; server: sink"
TOOK_MS = 12
COUNTER_SLOT = 13
"""Shard of the counters that no other process writes."""

Columns = Mapping[str, str | None]
"""SQL expressions by column; None is NULL."""


def numbers(first: int, last: int) -> str:
    """Return a derived table with the numbers as column ``n``."""
    return NUMBERS[connection.vendor].format(first=first, last=last)


def instant(ms: str) -> str:
    """Return the instant of an expression in Unix milliseconds."""
    return INSTANT[connection.vendor].format(ms=ms)


def key(ms: str, slot: int) -> str:
    """Return the first time-ordered key of a slot, for an expression in Unix milliseconds."""
    return f"((({ms}) - {ids.EPOCH_MS}) << {TIME_SHIFT}) + {slot << SLOT_SHIFT}"


def insert(model: type[Model], given: Columns, source: str) -> None:
    """Insert a row for each row of ``source``; columns not given get the model's default."""
    fields: dict[str, Field[Any, Any]] = {
        str(field.column): field for field in model._meta.concrete_fields
    }
    if unknown := given.keys() - fields.keys():
        raise ValueError(f"{model.__name__} has no columns {sorted(unknown)}.")
    expressions, values = [], []
    for column, field in fields.items():
        if column in given:
            expressions.append(given[column] or "NULL")
        else:
            expressions.append("%s")
            values.append(field.get_db_prep_save(field.get_default(), connection))
    columns = ", ".join(map(connection.ops.quote_name, fields))
    table = connection.ops.quote_name(model._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({columns}) SELECT {', '.join(expressions)} FROM {source}", values
        )


def insert_bodies(message_id: str, source: str) -> None:
    """Insert the same body for each message, not encrypted."""
    stored = f"x'{keyring().plain(BODY).hex()}'"
    insert(MessageBody, {"message_id": message_id, "data": stored}, source)


@dataclass(frozen=True, slots=True)
class RowState:
    """State of a batch's deliveries at one consumer."""

    consumer_id: int
    state: DeliveryState
    reason: Reason
    outcome: Outcome | None = None
    """None before the first attempt."""
    status: int | None = None


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
    """Milliseconds from acceptance until each is due."""

    def fill(self, done: int, total: int, progress: Progress) -> None:
        """Create the numbers above ``done`` up to ``total``, a chunk in each transaction."""
        in_chunks(self._insert, done, total, progress)

    def _insert(self, first: int, last: int) -> None:
        source, count = numbers(first, last), last - first + 1
        accepted_ms = f"{self.start_ms} + n * {self.step_ms}"
        message_id = key(accepted_ms, self.slot)
        common = {
            "channel_id": f"{self.channel_id}",
            "event_type": f"'{EVENT_TYPE}'",
            "priority": "n %% 10",
            "accepted_at": instant(accepted_ms),
            "due_at": instant(f"{accepted_ms} + {self.delay_ms}"),
        }
        message = {
            "id": message_id,
            "state": "'dispatched'",
            "content_type": "'application/json'",
            "body_bytes": f"{len(BODY)}",
            "consumer_count": f"{len(self.row_states)}",
        }
        insert(Message, common | message, source)
        insert_bodies(message_id, source)
        changes: dict[tuple[int, str], int] = {}
        for place, row_state in enumerate(self.row_states, start=1):
            # Shift each consumer's deliveries by a millisecond, so that their keys differ.
            at_ms = f"{accepted_ms} + {place}"
            delivery = self._delivery(row_state, at_ms) | {"message_id": message_id}
            insert(Delivery, common | delivery, source)
            if row_state.outcome is not None:
                insert(Attempt, self._attempt(row_state, row_state.outcome, at_ms), source)
            changes[row_state.consumer_id, row_state.state.value] = count
            changes[row_state.consumer_id, MADE] = count
        Counter.add(changes, COUNTER_SLOT)

    def _delivery(self, row_state: RowState, at_ms: str) -> dict[str, str | None]:
        outcome = row_state.outcome
        values: dict[str, str | None] = {
            "id": key(at_ms, self.slot),
            "consumer_id": f"{row_state.consumer_id}",
            "state": f"'{row_state.state.value}'",
            "reason": f"'{row_state.reason.value}'",
            "outcome": f"'{outcome.value if outcome else ''}'",
            "status_code": f"{row_state.status}" if row_state.status else None,
            "attempt_count": "1" if outcome else "0",
            "failure_count": "1" if outcome and outcome.charged else "0",
        }
        if row_state.state in FINISHED:
            values |= {"due_at": None, "finished_at": instant(f"{at_ms} + {TOOK_MS}")}
        return values

    def _attempt(self, row_state: RowState, outcome: Outcome, at_ms: str) -> Columns:
        return {
            "id": key(f"{at_ms} + {TOOK_MS}", self.slot),
            "delivery_id": key(at_ms, self.slot),
            "number": "1",
            "started_at": instant(at_ms),
            "outcome": f"'{outcome.value}'",
            "status_code": f"{row_state.status}" if row_state.status else None,
            "answer_headers": f"'{ANSWER_HEADERS}'",
            "total_ms": f"{TOOK_MS}",
            "worker": "'history'",
        }


def in_chunks(
    insert_range: Callable[[int, int], None], done: int, total: int, progress: Progress
) -> None:
    """Call ``insert_range`` in a transaction with the first and the last number of each chunk."""
    chunks = [(first, min(first + CHUNK - 1, total)) for first in range(done + 1, total + 1, CHUNK)]
    with ExitStack() as stack:
        if connection.vendor == "sqlite":  # it has one writer
            lasts: Iterable[int] = map(partial(_in_transaction, insert_range), chunks)
        else:
            stack.enter_context(_fast_writes())
            pool = stack.enter_context(ThreadPoolExecutor(THREADS))
            lasts = pool.map(partial(_in_thread, insert_range), chunks)
        for last in lasts:
            progress(last, total)


def _in_transaction(insert_range: Callable[[int, int], None], chunk: tuple[int, int]) -> int:
    with transaction.atomic():
        insert_range(*chunk)
    return chunk[1]


def _in_thread(insert_range: Callable[[int, int], None], chunk: tuple[int, int]) -> int:
    try:
        return _in_transaction(insert_range, chunk)
    finally:
        connection.close()


@contextmanager
def _fast_writes() -> Iterator[None]:
    """Let the server write dirty pages as fast as the disk can, and wait until they are written.

    By default the server would write them slowly, during the next measurement. For the same reason
    it updates the tables' statistics now.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(f'@@{name}' for name in FAST_WRITES)}")
        former = dict(zip(FAST_WRITES, cursor.fetchone(), strict=True))
        for name, value in FAST_WRITES.items():
            cursor.execute(f"SET GLOBAL {name} = {value}")
        try:
            yield
            for model in (Message, MessageBody, Delivery, Attempt):
                cursor.execute(f"ANALYZE TABLE {model._meta.db_table}")
                cursor.fetchall()
            end = time.monotonic() + MAX_WRITING_S
            while _dirty_pages() > IDLE_DIRTY_PAGES and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            for name, value in reversed(former.items()):
                cursor.execute(f"SET GLOBAL {name} = {value}")


def _dirty_pages() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'")
        return int(cursor.fetchone()[1])
