"""Creates many rows in every large table, most of one consumer and one state."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count

from django.db import connection

from channels_app.database import clock
from channels_app.models import AuditEntry, Consumer, IdempotencyRecord, MessageBody, new_id
from channels_app.registry import data_encryption
from delivery.models import Attempt, ConsumerHealth, Correlation, Delivery, OrderingWaiter, Replay
from tests.integration.indexes.judge import LARGE
from tests.support.counts import make_deliveries, make_messages
from tests.support.factories import ConsumerFactory, ProducerFactory

_minutes = count(1)
MOST = 1600 if connection.vendor == "mysql" else 600
"""Rows of one consumer and state: on MariaDB far more than any statement may read in vain. SQLite
does not count what it reads."""
SHARES = {
    "delivered": MOST,
    "dead": MOST // 2,
    "cancelled": 100,
    "queued": MOST // 2,
    "in_flight": 30,
}


@dataclass(slots=True)
class World:
    """Objects for addresses and steps."""

    consumer: Consumer
    """The consumer that has most rows."""
    others: list[Consumer]
    rows: dict[str, list[Delivery]] = field(default_factory=dict)
    """The deliveries of ``consumer`` by state."""


def make() -> World:
    """Fill the tables and update the database's statistics."""
    now = clock.now()
    consumer = ConsumerFactory.create()
    channel = consumer.channel
    made = World(consumer, [ConsumerFactory.create(channel=channel), ConsumerFactory.create()])
    made.others.append(ConsumerFactory.create(channel=channel, state="retired"))
    made.others.append(ConsumerFactory.create(channel=channel, state="paused"))
    producer = ProducerFactory.create()
    for one in (*made.others, consumer):
        for state, number in SHARES.items():
            number = number if one == consumer else number // 20 + 1
            is_open = state in {"queued", "in_flight"}
            made.rows[state] = make_deliveries(
                one,
                number,
                state=state,
                outcome="timeout" if state == "dead" else "delivered",
                event_type="a.b",
                due_at=now + timedelta(hours=1) if is_open else None,
                finished_at=None if is_open else now,
                lease_owner=1 if state == "in_flight" else None,
                interruption_count=0,
                accepted_at=earlier(),
            )
    made_by_nobody = make_messages(
        consumer, MOST, event_type="a.b", producer_id=producer.id, accepted_at=earlier()
    )
    make_messages(consumer, 200, state="accepted", accepted_at=earlier())
    for hours in range(8):
        make_messages(consumer, 100, accepted_at=earlier(), due_at=now + timedelta(hours=1 + hours))
    MessageBody.objects.bulk_create(
        [MessageBody(message_id=message.id, data=b"x") for message in made_by_nobody]
    )
    opened = made.rows["dead"][0].message_id
    stored, key_id = data_encryption.encrypt_body(opened, b"x", encrypt=False)
    MessageBody.objects.create(message_id=opened, data=stored, key_id=key_id)
    everything = [row for rows in made.rows.values() for row in rows]
    Attempt.objects.bulk_create(
        [_attempt(row, 1) for row in everything]
        + [_attempt(made.rows["dead"][0], number) for number in range(2, 400)]
    )
    IdempotencyRecord.objects.bulk_create(
        [
            IdempotencyRecord(
                digest=f"{place:064}",
                message_id=row.message_id,
                body_digest="1" * 64,
                expires_at=now + timedelta(seconds=place - 100),
            )
            for place, row in enumerate(everything)
        ]
    )
    # Each at a different instant, as in production: InnoDB rereads deleted rows of the same instant
    # until it has purged them.
    Correlation.objects.bulk_create(
        [
            Correlation(id=row.id, delivery_id=row.id, noted_at=now - timedelta(microseconds=place))
            for place, row in enumerate(everything)
        ]
    )
    Replay.objects.bulk_create([_replay(consumer, place) for place in range(MOST)])
    ConsumerHealth.objects.create(consumer=consumer, last_failure_at=now)
    AuditEntry.objects.bulk_create(
        [
            AuditEntry(actor="user:mia", action="channel.update", target=f"channel:{place % 9}")
            for place in range(MOST)
        ]
    )
    analyze()
    return made


def earlier() -> datetime:
    """Return another minute each time: keys made in bulk cover several milliseconds."""
    return clock.now() - timedelta(minutes=next(_minutes))


def analyze() -> None:
    """Update the statistics, as the database does over time."""
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            tables = sorted({*LARGE, OrderingWaiter._meta.db_table})
            cursor.execute(f"ANALYZE TABLE {', '.join(tables)}")
            cursor.fetchall()
        else:
            cursor.execute("ANALYZE")


def _attempt(row: Delivery, number: int) -> Attempt:
    return Attempt(
        id=new_id(),
        delivery_id=row.id,
        number=number,
        started_at=row.accepted_at,
        outcome="timeout",
    )


def _replay(consumer: Consumer, place: int) -> Replay:
    now = clock.now()
    return Replay(
        id=new_id(),
        state="running" if place % 500 == 0 else "finished",
        filter={"kind": "finished", "channel": consumer.channel.slug, "states": ["dead"]},
        consumer_ids=[consumer.id],
        requested_by="user:mia",
        upper_id=1,
        next_due_at=now,
        created_at=now,
        finished_at=None if place % 500 == 0 else now,
    )
