"""Make people, a row of every kind, and dead letters.

The argument is the URL of a receiver. Prints an API key with all rights.

`conftest.write` runs this module as a process with the broker's environment: the tests themselves
open no database.
"""

import sys
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import connection, transaction

from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import (
    Consumer,
    Membership,
    Message,
    PendingSequenceNumber,
    Sequence,
)
from delivery.models import Counter, Delivery
from delivery.models.counter import MADE
from tests.browser import showcase
from tests.browser.person import MEMBER, OPERATOR, PASSWORD
from tests.support import console
from tests.support.factories import (
    ApiKeyFactory,
    AttemptFactory,
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    EventTypeFactory,
    ProducerFactory,
    TeamFactory,
    text_of,
)

PILE = 50_000
DAY_MS = 86_400_000
NUMBERED = "receipts"
EARLY = 25
"""More than a sequence's page lists."""


def people() -> None:
    """Make a superuser, a team with a member, and a channel that is open to teams."""
    User.objects.create_superuser(OPERATOR, password=PASSWORD)
    member = User.objects.create_user(MEMBER, email="paula@example.com", password=PASSWORD)
    Membership.objects.create(
        team=TeamFactory.create(slug="acme", name="Acme"), user=member, role="editor"
    )
    news = ChannelFactory.create(slug="news", external=True)
    EventTypeFactory.create(channel=news, name="news.published", schema={"type": "object"})


def shop(receiver: str) -> None:
    """Make a channel: two consumers have one dead letter each, the archive has 50,000."""
    channel = ChannelFactory.create(slug="orders")
    ProducerFactory.create(slug="shop")
    for name in ("billing", "crm"):
        consumer = ConsumerFactory.create(
            channel=channel,
            client_id=name,
            url=f"{receiver}/{name}",
            event_types=["order.*"],
        )
        lost = DeliveryFactory.create(
            consumer=consumer, dead=True, message__body=b'{"order": 17, "total": "12.50"}'
        )
        for number in (1, 2, 3):
            AttemptFactory.create(
                delivery=lost, number=number, answer_headers="Server: x", answer_excerpt=b"Oh no"
            )
    archive = ConsumerFactory.create(
        channel=channel,
        client_id="archive",
        url=f"{receiver}/archive",
        event_types=["order.*"],
        paused=True,
    )
    with transaction.atomic():
        pile(archive, PILE)


def pile(consumer: Consumer, count: int) -> None:
    """Make dead letters of yesterday, one per second: the factory makes one, SQL copies it."""
    now = clock.now()
    first_ms = int(now.timestamp() * 1000) - DAY_MS
    key = ids.first_id_at(first_ms)
    step = ids.first_id_at(first_ms + 1000) - key
    dead = DeliveryFactory.create(
        consumer=consumer, id=key, message__id=key, dead=True, status_code=503
    )
    keys = f"SELECT {key} + number * {step} AS id FROM numbers"
    _multiply(dead.message, keys, count, {})
    _multiply(dead, keys, count, {"message_id": "more.id"})
    Counter.add({(consumer.pk, "dead"): count - 1, (consumer.pk, MADE): count - 1}, 0)


def sequences() -> None:
    """Make sequences: one with many early numbers, one that skipped, one with a very long key."""
    now = clock.now()
    channel = ChannelFactory.create(slug=NUMBERED)
    producer = ProducerFactory.create(slug="point-of-sale-terminals-of-the-second-floor")
    gap = {"skipped_count": 1204, "skipped_from": 99_001, "skipped_to": 100_204}
    keys: dict[str, dict[str, Any]] = {
        "till-1": {"expected": 3},
        "till-2": {"expected": 100_205, "skipped_at": now - timedelta(hours=2), **gap},
        f"till/{'x' * 200}": {"expected": 1, "producer": None},
    }
    for number, (key, values) in enumerate(keys.items(), start=2):
        of = {"channel": channel, "producer": producer, "touched_at": now, **values}
        Sequence.objects.create(id=number, ordering_key=key, **of)
    for place in range(EARLY):
        until = now + timedelta(days=1, seconds=place)
        PendingSequenceNumber.objects.create(
            id=100 + place, sequence_id=2, number=4 + place, until=until
        )


def _multiply(row: Message | Delivery, keys: str, count: int, changes: dict[str, str]) -> None:
    """Copy a row until there are ``count``."""
    table = row._meta.db_table
    columns = [str(field.column) for field in row._meta.concrete_fields if field.column != "id"]
    values = [changes.get(column, f"one.{column}") for column in columns]
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH RECURSIVE numbers(number) AS "
            f"(SELECT 1 UNION ALL SELECT number + 1 FROM numbers LIMIT {count - 1}), "
            f"more AS ({keys}) INSERT INTO {table} (id, {', '.join(columns)}) "
            f"SELECT more.id, {', '.join(values)} FROM more, {table} AS one WHERE one.id = {row.pk}"
        )


if __name__ == "__main__":
    people()
    console.fill()
    shop(sys.argv[1])
    sequences()
    showcase.fill(sys.argv[1])
    print(text_of(ApiKeyFactory.create(admin=True)))  # noqa: T201 - the tests publish with this key
