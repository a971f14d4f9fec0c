"""Every route of the API without a key, with a key without permissions, and from another team."""

import pytest
from django.db.models import Model
from django.utils import timezone

from channels_app.core.ids import ORDERING_KEY, to_public
from channels_app.models import (
    ApiKey,
    Channel,
    Consumer,
    EventType,
    Message,
    Producer,
    Schedule,
)
from delivery.models import Delivery, OrderingKey, Replay
from tests.support.api import Api
from tests.support.factories import (
    ApiKeyFactory,
    ConsumerFactory,
    DeliveryFactory,
    EventTypeFactory,
    ProducerFactory,
    ScheduleFactory,
    TeamFactory,
)
from tests.support.routes import routes
from tests.support.snapshot import rows

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
BODIES: dict[str, object] = {
    "POST": {},
    "PUT": {"url": "http://127.0.0.1:9/"},
    "PATCH": {"url": "http://127.0.0.1:9/"},
}
TABLES: list[type[Model]] = [
    ApiKey, Channel, Consumer, Delivery, EventType, Message, OrderingKey, Producer, Replay,
    Schedule,
]  # fmt: skip


ROUTES = sorted({path for path, _ in routes("/api/v1/")})


@pytest.fixture
def addresses(db: None) -> dict[str, str]:
    """Objects of one team, by the names of the routes' parameters."""
    team = TeamFactory.create()
    key = ApiKeyFactory.create(producer=ProducerFactory.create(team=team))
    consumer = ConsumerFactory.create(channel__external=True, team=team)
    delivery = DeliveryFactory.create(dead=True, consumer=consumer)
    event_type = EventTypeFactory.create(channel=consumer.channel)
    Message.objects.update(producer=key.producer)
    schedule = ScheduleFactory.create(channel=consumer.channel, producer=key.producer)
    key_row = OrderingKey.objects.create(
        id=7, consumer=consumer, ordering_key="A", head_id=delivery.id, head_at=timezone.now()
    )
    return {
        "channel": consumer.channel.slug,
        "client_id": consumer.client_id,
        "name": event_type.name,
        "team": team.slug,
        "producer": str(key.producer),
        "key_id": key.key_id,
        "message_id": to_public("msg", delivery.message_id),
        "delivery_id": to_public("dlv", delivery.id),
        "replay_id": to_public("rpl", 1),
        "schedule": schedule.name,
        "ordering_key_id": to_public(ORDERING_KEY, key_row.id),
    }


def _address(route: str, addresses: dict[str, str]) -> str:
    for name, value in addresses.items():
        route = route.replace(f"<str:{name}>", value)
    assert "<" not in route, f"the walk does not know a parameter of {route}"
    return route


def _ignoring_use(key: ApiKey) -> ApiKey:
    # The first use of a key updates last_used_at: do that before the comparison.
    Api(key).get("/api/v1/nothing-here")
    Api(key).get("channels")
    return key


def test_the_test_covers_every_route() -> None:
    assert len(ROUTES) >= 29
    assert "/api/v1/channels/<str:channel>/messages" in ROUTES


@pytest.mark.trap("missing authentication and readable secrets")
@pytest.mark.parametrize("route", ROUTES)
def test_without_a_key_every_route_is_401(route: str, addresses: dict[str, str]) -> None:
    before = rows(TABLES)
    for method in METHODS:
        answer = Api().call(method, _address(route, addresses), {})
        assert answer.status == 401, method
        assert answer.header("WWW-Authenticate")
        assert method == "HEAD" or answer.is_problem
    assert rows(TABLES) == before


@pytest.mark.parametrize("route", ROUTES)
def test_without_the_scope_every_route_is_403(route: str, addresses: dict[str, str]) -> None:
    api = Api(_ignoring_use(ApiKeyFactory.create(scopes=["nothing"])))
    before = rows(TABLES)
    for method in METHODS:
        answer = api.call(method, _address(route, addresses), {})
        assert answer.status in {403, 405}, method
    assert rows(TABLES) == before


@pytest.mark.parametrize("route", ROUTES)
def test_another_team_finds_nothing_and_changes_nothing(
    route: str, addresses: dict[str, str]
) -> None:
    everything = ["publish", "register", "receive", "read", "replay"]
    team = TeamFactory.create()
    strangers = [
        ApiKeyFactory.create(team=team, scopes=everything),
        ApiKeyFactory.create(producer=ProducerFactory.create(team=team), scopes=everything),
        ApiKeyFactory.create(scopes=everything),
    ]
    ours = {addresses["client_id"], addresses["message_id"], addresses["delivery_id"]}
    for stranger in strangers:
        api = Api(_ignoring_use(stranger))
        theirs = rows(TABLES)
        for method in METHODS:
            address = _address(route, addresses)
            answer = api.call(method, address, BODIES.get(method))
            assert answer.status < 500, method
            if any(name in route for name in ("client_id", "message_id", "delivery_id", "key_id")):
                assert answer.status in {403, 404, 405}, (method, answer.body)
            if method == "GET":
                shown = answer.body.decode()
                assert answer.status != 200 or not any(name in shown for name in ours)
            if method not in {"GET", "HEAD"} and answer.status >= 300:
                assert rows(TABLES) == theirs, method
            theirs = rows(TABLES)
