"""Create rows in bulk, compare the counters with the rows, and count queries."""

from collections import Counter as Tally
from datetime import datetime
from itertools import count
from typing import Any
from urllib.parse import quote

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import Consumer, Message, new_id
from delivery.models import Counter, Delivery
from delivery.models.counter import MADE

_places = count()
DEAD: dict[str, Any] = {
    "state": "dead",
    "reason": "exhausted",
    "attempt_count": 3,
    "failure_count": 3,
    "interruption_count": 2,
    "outcome": "server_error",
    "status_code": 500,
    "due_at": None,
}


def make_messages(consumer: Consumer, number: int, **values: Any) -> list[Message]:
    """Create dispatched messages of the consumer's channel without deliveries."""
    at: datetime = values.pop("accepted_at", clock.now())
    return Message.objects.bulk_create(
        [
            Message(
                id=key_at(at),
                channel_id=consumer.channel_id,
                **{"state": "dispatched", "accepted_at": at, "due_at": at} | values,
            )
            for _ in range(number)
        ]
    )


def key_at(instant: datetime) -> int:
    """Return a new key with the time of an instant."""
    return ids.first_id_at(int(instant.timestamp() * 1000)) + next(_places)


def make_deliveries(consumer: Consumer, number: int, **values: Any) -> list[Delivery]:
    """Create dead deliveries (or others, by ``values``) with their messages and counters."""
    accepted_at: datetime = values.pop("accepted_at", clock.now())
    messages = make_messages(consumer, number, accepted_at=accepted_at)
    rows = Delivery.objects.bulk_create(
        [
            Delivery(
                id=new_id(),
                message_id=message.id,
                consumer_id=consumer.id,
                channel_id=consumer.channel_id,
                **{"accepted_at": accepted_at, "finished_at": clock.now()} | DEAD | values,
            )
            for message in messages
        ]
    )
    Message.objects.filter(id__in=[message.id for message in messages]).update(consumer_count=1)
    state = (DEAD | values)["state"]
    Counter.add({(consumer.id, state): number, (consumer.id, MADE): number}, 0)
    return rows


def assert_counters_are_true() -> None:
    """Assert that every counter equals the count of its rows."""
    counted: Tally[tuple[int, str]] = Tally()
    for consumer_id, state in Delivery.objects.values_list("consumer_id", "state"):
        counted[consumer_id, state] += 1
        counted[consumer_id, MADE] += 1
    kept: Tally[tuple[int, str]] = Tally()
    for consumer_id, state, number in Counter.objects.values_list("consumer_id", "state", "count"):
        kept[consumer_id, state] += number
    assert +kept == counted
    assert all(number >= 0 for number in kept.values())


def query_count(client: Client, url: str) -> int:
    """Return the number of queries of a page."""
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return len(captured)


def public(row: Delivery | Message) -> str:
    """Return the id that the API shows."""
    return ids.to_public(ids.DELIVERY if isinstance(row, Delivery) else ids.MESSAGE, row.id)


def database_url() -> str:
    """Return the URL of the test's own database, for another process."""
    chosen = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{chosen['NAME']}"
    place = f"{chosen['HOST']}:{chosen['PORT']}/{chosen['NAME']}"
    return f"mysql://{quote(chosen['USER'])}:{quote(chosen['PASSWORD'])}@{place}"
