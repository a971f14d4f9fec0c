"""Query plans of every list and page of the API, with each filter, in both directions."""

import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from channels_app.core import ids, times
from channels_app.database import clock
from channels_app.models import Message
from delivery.core.ordering import key_number
from delivery.models import OrderingKey, Replay
from delivery.serializers.filters import STATES as STATES_OF_DELIVERIES
from tests.integration.indexes.judge import judging
from tests.integration.indexes.world import World
from tests.support.calling import BASE, Api, document
from tests.support.counts import public
from tests.support.factories import (
    ApiKeyFactory,
    EventTypeFactory,
    ProducerFactory,
    ScheduleFactory,
    TeamFactory,
)

# ANALYZE commits implicitly: a rollback would leave the rows for other tests.
pytestmark = pytest.mark.django_db(transaction=True)

MOMENTS = ["2026-01-01T00:00:00Z", "2099-01-01T00:00:00Z"]
VALUES: dict[str, list[str]] = {
    "event_type": ["a.b", "x.y", "a.*"],
    "from": MOMENTS,
    "to": MOMENTS,
    "outcome": ["timeout", "gone"],
    "status_code": ["503", "200"],
    "reason": [],
    "width_s": ["3600"],
    "ordering_key": ["room-7"],
    "idempotency_key": ["order-7"],
}
"""Values to try for each filter. A new filter fails here until it has values too."""
STATES = {
    "channels/{channel}/consumers": ["active", "retired"],
    "channels/{channel}/consumers/{client_id}/deliveries": list(STATES_OF_DELIVERIES),
    "channels/{channel}/consumers/{client_id}/ordering-keys": ["open", "paused", "blocked"],
    "channels/{channel}/messages": [
        "accepted",
        "dispatched",
        "cancelled",
        "scheduled",
        *Message.Shown.values,
    ],
    "channels/{channel}/schedules": ["active", "ended"],
    "replays": ["running", "finished", "cancelled"],
}


@pytest.mark.slow("explains every statement of the API")
def test_every_address_that_is_read(large: World) -> None:
    operator, reader = Api(scopes=["admin"]), Api(scopes=["read"])
    names = addresses_of(large, operator)
    with judging() as judge:
        for path, query in requests(large):
            judge.where = path.format(**names) + query
            answer = operator.get(judge.where)
            assert answer.status_code == 200, (judge.where, answer.content)
            if answer.headers["Content-Type"] == "application/json" and "next" in answer.json():
                turn_page(operator, judge.where, answer.json())
            # A key without a team uses a different query.
            assert reader.get(judge.where).status_code in {200, 403, 404}
    judge.accept()


def requests(large: World) -> Iterator[tuple[str, str]]:
    """Yield every documented GET without a filter, with each filter, and with pairs of filters."""
    for template, operations in sorted(document()["paths"].items()):
        if "get" not in operations:
            continue
        path = template.removeprefix(BASE)
        known = [
            parameter["name"]
            for parameter in operations["get"].get("parameters", ())
            if parameter["in"] == "query" and parameter["name"] not in {"limit", "cursor"}
        ]
        is_list = any(it["name"] == "limit" for it in operations["get"].get("parameters", ()))
        start = "?limit=5&" if is_list else "?"
        filters = [[(name, value) for value in values(large, path, name)] for name in known]
        yield path, start.rstrip("&?") if known else ""
        for choices in filters:
            yield from ((path, f"{start}{name}={value}") for name, value in choices)
        for one, other in itertools.combinations(filters, 2):
            (name, value), (second, also) = one[0], other[-1]
            yield path, f"{start}{name}={value}&{second}={also}"


def values(large: World, path: str, name: str) -> list[str]:
    """Return the values to try for a filter."""
    if name == "state":
        return STATES[path.lstrip("/")]
    if name == "after":
        return [ids.to_public(ids.MESSAGE, large.rows["dead"][0].message_id), "msg_0000000000000"]
    if path.endswith("/histogram") and name == "to":
        return [times.text(clock.now() + timedelta(hours=10))]  # longer needs a larger width_s
    return VALUES[name]


def turn_page(api: Api, address: str, found: dict[str, Any]) -> None:
    """Go to the next page and back: pages further on have the same statements."""
    place = address.partition("?")[0]
    for direction in ("next", "previous"):
        if found.get(direction) is not None:
            found = api.get(f"{place}?cursor={found[direction]}").json()


def addresses_of(large: World, api: Api) -> dict[str, str]:
    """Return an object for each path parameter; the delivery is the one with most attempts."""
    assert api.key is not None
    producer = api.key.producer or ProducerFactory.create()
    dead, channel = large.rows["dead"][0], large.consumer.channel
    key_row, _ = OrderingKey.objects.get_or_create(
        id=key_number(large.consumer.id, "room-7"),
        consumer=large.consumer,
        ordering_key="room-7",
        head_at=clock.now(),
    )
    return {
        "channel": channel.slug,
        "client_id": large.consumer.client_id,
        "name": EventTypeFactory.create(channel=channel).name,
        "schedule": ScheduleFactory.create(channel=channel).name,
        "team": TeamFactory.create().slug,
        "producer": producer.slug,
        "key_id": ApiKeyFactory.create(producer=producer).key_id,
        "message_id": ids.to_public(ids.MESSAGE, dead.message_id),
        "delivery_id": public(dead),
        "replay_id": ids.to_public(ids.REPLAY, Replay.objects.order_by("id")[5].id),
        "ordering_key_id": ids.to_public(ids.ORDERING_KEY, key_row.id),
    }
