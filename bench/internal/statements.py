"""Measure statements in the broker's tables: the pump's own ones, and those of a minimal client.

``measure_pump`` measures the time and the rows read of claims, discovery and fan-out. No other
process may deliver meanwhile. Claimed deliveries are released at the end.

``measure_minimum`` measures the database's part of a message: it commits messages with their
bodies, claims a hundred rows at a time, and settles their attempts, each as text over the driver's
own connection. It measures the CPU time of this process and of the database server, and for the
commit also the duration at a steady rate.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import Any

from django.db import connection

from bench import machine
from bench.adapters import Progress
from bench.internal.history import CHANNEL, REFUSING_URL
from bench.internal.rows import ANSWER_HEADERS, Batch, RowState
from bench.stage import percentile
from channels_app.database import clock, raw
from channels_app.ingest import accept
from channels_app.ingest.accept import Publication
from channels_app.models import Channel, Consumer, Message, MessageBody, new_id
from channels_app.registry.cache import ChannelConfig, config_cache
from delivery.cluster import children
from delivery.cluster.children import Bind
from delivery.core.lifecycle import DeliveryState, Reason
from delivery.core.recipients import LEVELS
from delivery.models import Attempt, Counter, Delivery
from delivery.queue import claim, due_times, fanout, release
from delivery.queue.claim import ClaimRequest

BATCH = 100
"""Rows of one claim, messages of one fan-out."""
WARM_UP = 3
OWNER = 4711
LEASE = timedelta(minutes=10)
PUMP_SLOT, MINIMUM_SLOT = 12, 11
"""Shards of the counters."""
FANOUT_CHANNEL, MINIMUM_CHANNEL = "claims", "floor"
"""Channels of the messages; their consumers are paused, so that no pump claims deliveries."""
BODY_BYTES = 1_061
"""1 KiB, encrypted."""
MESSAGES = 8_000
BATCH_SLOT = 4
"""The slot of its keys."""
DELIVERIES = Delivery._meta.db_table
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


def server_command(progress: Progress, *, bind: str, application: str) -> dict[str, list[str]]:
    """Return how the broker starts its web server, with another application."""
    *command, _ = children.web(Bind.parse(bind)).command
    return {"command": [*command, application]}


def measure_pump(progress: Progress, *, samples: int) -> dict[str, float]:
    """Return medians in milliseconds, and rows read per requested row, consumer or message."""
    consumers = dict(Consumer.objects.filter(channel__slug=CHANNEL).values_list("client_id", "id"))
    channel = _channel()
    request = ClaimRequest(consumers["steady"], BATCH, LEASE // timedelta(milliseconds=1), OWNER)
    for sample in range(-WARM_UP, samples):
        if sample in (-WARM_UP, 0):
            claims, discoveries, fanouts = Cost(), Cost(), Cost()
        with claims.measured():
            claimed = claim.claim([request], now=clock.now(), slot=PUMP_SLOT)
        claims.rows += len(claimed.rows)
        with discoveries.measured():
            due = due_times.next_due(consumers.values())
        discoveries.rows += len(due) or 1
        accept.accept(channel, None, [Publication(body=b"{}")] * BATCH)
        with fanouts.measured():
            fanned_out = fanout.fan_out(BATCH, PUMP_SLOT)
        fanouts.rows += fanned_out.message_count
        progress(max(0, sample + 1), samples)
    release.release_owner(OWNER, now=clock.now(), slot=PUMP_SLOT)
    costs = {"claim": claims, "discover": discoveries, "fanout": fanouts}
    return {
        **{f"{work}_ms": median(cost.milliseconds) for work, cost in costs.items()},
        **{f"{work}_reads": cost.reads / cost.rows for work, cost in costs.items()},
    }


@dataclass(slots=True)
class Cost:
    """Duration and reads of one kind of work."""

    milliseconds: list[float] = field(default_factory=list)
    reads: int = 0
    """Rows that this connection read. SQLite does not count them."""
    rows: int = 0
    """Rows that the work handled."""

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the work while the context is open."""
        first = _rows_read()
        before = _rows_read()  # reading the counter reads a constant number of rows itself
        start = time.perf_counter()
        yield
        self.milliseconds.append((time.perf_counter() - start) * 1e3)
        self.reads += _rows_read() - before - (before - first)


def _rows_read() -> int:
    if connection.vendor != "mysql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(count) for _, count in cursor.fetchall())


def _channel() -> ChannelConfig:
    channel, is_new = Channel.objects.get_or_create(slug=FANOUT_CHANNEL)
    if is_new:
        _paused_consumer(channel)
    config_cache.refresh(now=True)
    config = config_cache.channel(FANOUT_CHANNEL)
    assert config is not None
    return config


def _paused_consumer(channel: Channel) -> Consumer:
    return Consumer.objects.create(
        channel=channel, client_id=channel.slug, url=REFUSING_URL, state=Consumer.State.PAUSED
    )


def measure_minimum(
    progress: Progress, *, group: int, paced: int, rate: int, pids: Sequence[int]
) -> dict[str, float]:
    """Return CPU milliseconds per message and the time of a commit.

    ``group`` is the number of messages per commit, ``paced`` the number of timed commits at
    ``rate`` per second; ``pids`` are the database server's.
    """
    channel = Channel.objects.create(slug=MINIMUM_CHANNEL, encrypt_bodies=False)
    consumer = _paused_consumer(channel)
    row_state = RowState(consumer.id, DeliveryState.QUEUED, Reason.ACCEPTED)
    start_ms = int(clock.now().timestamp() * 1000) - 2 * MESSAGES
    Batch(BATCH_SLOT, channel.id, start_ms, 1, (row_state,)).fill(0, MESSAGES, progress)
    connection.ensure_connection()
    client = Client([os.getpid(), *pids])
    alone = [_new_messages(client, channel.id, 1) for _ in range(MESSAGES // 4)]
    shared = [_new_messages(client, channel.id, group) for _ in range(max(1, MESSAGES // group))]
    waits = client.waits_ms([_new_messages(client, channel.id, 1) for _ in range(paced)], rate)
    found = {"commit_p50": percentile(waits, 0.5), "commit_p99": percentile(waits, 0.99)}
    client.spent_ms()  # the above is not counted
    client.send_all(alone)
    found["commit_one"] = client.spent_ms() / len(alone)
    client.send_all(shared)
    found["commit_group"] = client.spent_ms() / len(shared) / group
    claimed = list(_claims(client, consumer.id))
    found["claim"] = client.spent_ms() / MESSAGES
    _settle_all(client, consumer.id, claimed)
    found["settle"] = client.spent_ms() / MESSAGES
    return found


class Client:
    """The driver's connection without Django's layers."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._driver: Any = connection.connection
        self._groups = {"all": pids}
        self._before = machine.cpu_times(self._groups)

    def spent_ms(self) -> float:
        """Return CPU milliseconds of these processes since the last call."""
        before, self._before = self._before, machine.cpu_times(self._groups)
        return self._before.since(before)["all"] * 1e3

    def text(self, *statements: raw.Statement) -> bytes:
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
        for packet in packets:
            self.send(packet)

    def waits_ms(self, packets: Sequence[bytes], rate: float) -> list[float]:
        """Return the duration of each packet in milliseconds, sent at a steady rate."""
        begin, waits = time.perf_counter(), []
        for number, packet in enumerate(packets):
            time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
            sent = time.perf_counter()
            self.send(packet)
            waits.append((time.perf_counter() - sent) * 1e3)
        return waits


def _new_messages(client: Client, channel_id: int, count: int) -> bytes:
    """Return the transaction that stores messages with their bodies, without fan-out."""
    ids, now = [new_id() for _ in range(count)], raw.text(clock.now())
    messages = (((id_, channel_id, 1024), (now, now, "application/json", "{}")) for id_ in ids)
    bodies = (((id_,), (os.urandom(BODY_BYTES), "01234567")) for id_ in ids)
    return client.text(
        ("BEGIN", []),
        *NEW_MESSAGES.statements(messages),
        *NEW_BODIES.statements(bodies),
        ("COMMIT", []),
    )


def _claims(client: Client, consumer_id: int) -> Iterator[list[int]]:
    """Claim all waiting deliveries in batches, one priority level at a time."""
    for level in LEVELS:
        while rows := _claim(client, consumer_id, level):
            yield rows


def _claim(client: Client, consumer_id: int, level: int) -> list[int]:
    now = clock.now()
    find = (
        f"SELECT id, message_id, attempt_count FROM {DELIVERIES} WHERE consumer_id = {consumer_id}"
        f" AND priority = {level} AND due_at <= %s ORDER BY due_at, id LIMIT {BATCH}"
        " FOR UPDATE SKIP LOCKED"
    )
    rows = client.send(client.text(("BEGIN", []), (find, [raw.text(now)])))
    if rows:
        take = (
            f"UPDATE {DELIVERIES} SET state = 'in_flight', reason = 'claimed', lease_owner = 1,"
            " attempt_count = attempt_count + 1, version = version + 1, due_at = %s"
            f" WHERE id IN ({raw.listed(row[0] for row in rows)})"
        )
        client.send(client.text((take, [raw.text(now + LEASE)])))
        _count(consumer_id, DeliveryState.QUEUED, DeliveryState.IN_FLIGHT, len(rows))
    client.send(b"COMMIT")
    return [row[0] for row in rows]


def _settle_all(client: Client, consumer_id: int, batches: Sequence[Sequence[int]]) -> None:
    for ids in batches:
        now = raw.text(clock.now())
        move = (
            f"UPDATE {DELIVERIES} SET state = 'delivered', reason = 'delivered',"
            " outcome = 'delivered', status_code = 200, due_at = NULL, finished_at = %s,"
            f" lease_owner = NULL, version = version + 1 WHERE id IN ({raw.listed(ids)})"
            " AND state = 'in_flight' AND attempt_count = 1"
        )
        answer = (now, "delivered", ANSWER_HEADERS, "127.0.0.1", MINIMUM_CHANNEL)
        attempts = NEW_ATTEMPTS.statements(((new_id(), id_, 1, 200, 1), answer) for id_ in ids)
        client.send(client.text(("BEGIN", []), (move, [now]), *attempts))
        _count(consumer_id, DeliveryState.IN_FLIGHT, DeliveryState.DELIVERED, len(ids))
        client.send(b"COMMIT")


def _count(consumer_id: int, was: DeliveryState, now: DeliveryState, count: int) -> None:
    Counter.add({(consumer_id, was.value): -count, (consumer_id, now.value): count}, MINIMUM_SLOT)
