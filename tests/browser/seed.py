"""``python -m tests.browser.seed RECEIVER``: tables, people, a row of every kind, dead letters.

Prints a key that may do everything.

A process of its own, with the broker's environment: the tests themselves open no database.
"""

import sys

import django

django.setup()

from django.contrib.auth.models import Permission, User  # noqa: E402 - Django is there now
from django.core.management import call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402

from channels_app import clock  # noqa: E402
from channels_app.models import Consumer, Membership, Message  # noqa: E402
from channels_app.rules import ids  # noqa: E402
from delivery.models import Counter, Delivery  # noqa: E402
from delivery.models.counter import MADE  # noqa: E402
from tests import console  # noqa: E402
from tests.browser import showcase  # noqa: E402
from tests.browser.person import MEMBER, ONLOOKER, OPERATOR, PASSWORD  # noqa: E402
from tests.factories import (  # noqa: E402
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


def people() -> None:
    """One who may do everything, and one who may look at everything."""
    User.objects.create_superuser(OPERATOR, password=PASSWORD)
    onlooker = User.objects.create_user(ONLOOKER, password=PASSWORD, is_staff=True)
    onlooker.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))


def team() -> None:
    """A team with a member, and a channel that is open to teams."""
    member = User.objects.create_user(MEMBER, email="paula@example.com", password=PASSWORD)
    Membership.objects.create(
        team=TeamFactory.create(slug="acme", name="Acme"), user=member, role="editor"
    )
    news = ChannelFactory.create(slug="news", external=True)
    EventTypeFactory.create(channel=news, name="news.published", schema={"type": "object"})


def shop(receiver: str) -> None:
    """A channel whose consumers were down for one message, and its archive for a great many."""
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
    """Dead letters of yesterday, one a second: one is made here, the database makes the others."""
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


def _multiply(row: Message | Delivery, keys: str, count: int, changes: dict[str, str]) -> None:
    """Rows like this one, until there are ``count``."""
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
    call_command("migrate", verbosity=0)
    people()
    console.fill()
    shop(sys.argv[1])
    team()
    showcase.fill(sys.argv[1])
    print(text_of(ApiKeyFactory.create(admin=True)))  # noqa: T201 - what the tests publish with
