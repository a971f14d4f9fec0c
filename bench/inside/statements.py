"""Measure the database's part of a message, with a minimal client.

It commits messages with their bodies, claims a hundred rows at a time, and settles their attempts,
each as text over the driver's own connection. It measures the CPU time of this process and of the
database server, and for the commit also the duration at a steady rate.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from django.db import connection

from bench import cpu
from bench.figures import percentile
from bench.flow import Tell
from bench.inside.batches import ANSWER_HEADERS, Batch, RowState, fill
from channels_app.database import clock, raw
from channels_app.models import Channel, Consumer, Message, MessageBody, new_id
from delivery.core.lifecycle import DeliveryState, Reason
from delivery.core.recipients import LEVELS
from delivery.models import Attempt, Counter, Delivery

NAME = "floor"
BODY_BYTES = 1_061
"""1 KiB, encrypted."""
MESSAGES = 8_000
BATCH_SLOT = 4
"""The slot of its keys."""
BATCH = 100
TABLE = Delivery._meta.db_table
LEASE = timedelta(minutes=10)
SLOT = 11
NEW_MESSAGES = raw.Insert(
    Message,
    numbers=("id", "channel_id", "body_bytes"),
    values=("accepted_at", "due_at", "content_type", "headers"),
    same={"state": Message.State.DISPATCHED.value},
)
NEW_BODIES = raw.Insert(MessageBody, numbers=("message_id",), values=("data", "key_id"))
NEW_ATTEMPTS = raw.Insert(
    Attempt,
    numbers=("id", "delivery_id", "number", "status_code", "total_ms"),
    values=("started_at", "outcome", "answer_headers", "remote_address", "worker"),
)


def main(arguments: Sequence[str], tell: Tell) -> dict[str, float]:
    """``GROUP WAITS RATE PID...``: return CPU milliseconds per message and the time of a commit.

    ``GROUP`` is the number of messages per commit, ``WAITS`` the number of timed commits at
    ``RATE`` per second; the processes are the database server's.
    """
    group, paced, rate, *pids = map(int, arguments)
    channel, consumer = _place()
    row_state = RowState(consumer.id, DeliveryState.QUEUED, Reason.ACCEPTED)
    start_ms = int(clock.now().timestamp() * 1000) - 2 * MESSAGES
    fill(Batch(BATCH_SLOT, channel.id, start_ms, 1, (row_state,)), 0, MESSAGES, tell)
    connection.ensure_connection()
    bare = Bare([os.getpid(), *pids])
    alone = [_new(bare, channel.id, 1) for _ in range(MESSAGES // 4)]
    shared = [_new(bare, channel.id, group) for _ in range(max(1, MESSAGES // group))]
    waits = list(bare.waits_ms([_new(bare, channel.id, 1) for _ in range(paced)], rate))
    held: list[list[int]] = []
    return {
        "commit_p50": percentile(waits, 0.5),
        "commit_p99": percentile(waits, 0.99),
        "commit_one": bare.cost(lambda: bare.send_all(alone), len(alone)),
        "commit_group": bare.cost(lambda: bare.send_all(shared), len(shared) * group),
        "claim": bare.cost(lambda: held.extend(_claims(bare, consumer.id)), MESSAGES),
        "settle": bare.cost(lambda: _settle_all(bare, consumer.id, held), MESSAGES),
    }


class Bare:
    """The driver's connection without Django's layers."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._driver: Any = connection.connection
        self._groups = {"all": pids}

    def cost(self, work: Callable[[], object], messages: int) -> float:
        """Return CPU milliseconds per message, of this process and the server."""
        before = cpu.look(self._groups)
        work()
        return cpu.look(self._groups).since(before)["all"] / messages * 1e3

    def text(self, *statements: raw.Statement) -> bytes:
        """Return statements as one packet."""
        return b"; ".join(
            sql.encode() % tuple(self._driver.literal(value) for value in values)
            for sql, values in statements
        )

    def send(self, packet: bytes) -> list[tuple[Any, ...]]:
        """Send a packet and return the rows of its last query."""
        rows: list[tuple[Any, ...]] = []
        self._driver.query(packet)
        while True:
            if result := self._driver.store_result():
                rows = list(result.fetch_row(0))
            if self._driver.next_result() < 0:
                return rows

    def send_all(self, packets: Iterable[bytes]) -> None:
        """Send packets one after the other."""
        for packet in packets:
            self.send(packet)

    def waits_ms(self, packets: Sequence[bytes], rate: float) -> Iterator[float]:
        """Yield the duration of each packet in milliseconds, sent at a steady rate."""
        begin = time.perf_counter()
        for number, packet in enumerate(packets):
            time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
            sent = time.perf_counter()
            self.send(packet)
            yield (time.perf_counter() - sent) * 1e3


def _place() -> tuple[Channel, Consumer]:
    channel = Channel.objects.create(slug=NAME, encrypt_bodies=False)
    # Paused, so that no pump claims its deliveries.
    return channel, Consumer.objects.create(
        channel=channel, client_id=NAME, url="http://127.0.0.1:9/", state=Consumer.State.PAUSED
    )


def _new(bare: Bare, channel_id: int, count: int) -> bytes:
    """Return the transaction that stores messages with their bodies, without fan-out."""
    ids, now = [new_id() for _ in range(count)], raw.text(clock.now())
    messages = (((id_, channel_id, 1024), (now, now, "application/json", "{}")) for id_ in ids)
    bodies = (((id_,), (os.urandom(BODY_BYTES), "01234567")) for id_ in ids)
    return bare.text(
        ("BEGIN", []),
        *NEW_MESSAGES.statements(messages),
        *NEW_BODIES.statements(bodies),
        ("COMMIT", []),
    )


def _claims(bare: Bare, consumer_id: int) -> Iterator[list[int]]:
    """Claim all waiting deliveries in batches, one priority level at a time."""
    for level in LEVELS:
        while rows := _claim(bare, consumer_id, level):
            yield rows


def _claim(bare: Bare, consumer_id: int, level: int) -> list[int]:
    now = clock.now()
    find = (
        f"SELECT id, message_id, attempt_count FROM {TABLE} WHERE consumer_id = {consumer_id}"  # noqa: S608
        f" AND priority = {level} AND due_at <= %s ORDER BY due_at, id LIMIT {BATCH}"
        " FOR UPDATE SKIP LOCKED"
    )
    rows = bare.send(bare.text(("BEGIN", []), (find, [raw.text(now)])))
    if rows:
        take = (
            f"UPDATE {TABLE} SET state = 'in_flight', reason = 'claimed', lease_owner = 1,"  # noqa: S608
            " attempt_count = attempt_count + 1, version = version + 1, due_at = %s"
            f" WHERE id IN ({raw.listed(row[0] for row in rows)})"
        )
        bare.send(bare.text((take, [raw.text(now + LEASE)])))
        _count(consumer_id, DeliveryState.QUEUED, DeliveryState.IN_FLIGHT, len(rows))
    bare.send(b"COMMIT")
    return [row[0] for row in rows]


def _settle_all(bare: Bare, consumer_id: int, batches: Sequence[Sequence[int]]) -> None:
    for ids in batches:
        now = raw.text(clock.now())
        move = (
            f"UPDATE {TABLE} SET state = 'delivered', reason = 'delivered',"  # noqa: S608
            " outcome = 'delivered', status_code = 200, due_at = NULL, finished_at = %s,"
            f" lease_owner = NULL, version = version + 1 WHERE id IN ({raw.listed(ids)})"
            " AND state = 'in_flight' AND attempt_count = 1"
        )
        answer = (now, "delivered", ANSWER_HEADERS, "127.0.0.1", NAME)
        attempts = NEW_ATTEMPTS.statements(((new_id(), id_, 1, 200, 1), answer) for id_ in ids)
        bare.send(bare.text(("BEGIN", []), (move, [now]), *attempts))
        _count(consumer_id, DeliveryState.IN_FLIGHT, DeliveryState.DELIVERED, len(ids))
        bare.send(b"COMMIT")


def _count(consumer_id: int, was: DeliveryState, now: DeliveryState, count: int) -> None:
    Counter.add({(consumer_id, was.value): -count, (consumer_id, now.value): count}, SLOT)
