"""Every route of the API with keys of others: they find and change nothing."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
from django.db.models import Model

from channels_app.core import ids
from channels_app.models import (
    ApiKey,
    Channel,
    Consumer,
    ConsumerSecret,
    EventType,
    Message,
    MessageBody,
    Producer,
    Schedule,
    ScheduleBody,
    Team,
)
from delivery.models import Attempt, Delivery, OrderingKey, Replay
from tests.support import world
from tests.support.api import Answer, Api
from tests.support.factories import ApiKeyFactory, ChannelFactory, ProducerFactory, TeamFactory
from tests.support.routes import routes
from tests.support.snapshot import rows, undone, unwritten
from tests.support.world import World

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
SCOPES = ["publish", "register", "receive", "read", "replay"]
"""All scopes but admin, which is not limited to a team."""
TABLES: list[type[Model]] = [
    *(ApiKey, Attempt, Channel, Consumer, ConsumerSecret, Delivery, EventType),
    *(OrderingKey, Message, MessageBody, Producer, Replay, Schedule, ScheduleBody),
]
pytestmark = pytest.mark.django_db


def operations() -> list[tuple[str, str]]:
    """Return route and method of every operation; a view without a method answers it with 405."""
    found = []
    for path, pattern in routes("/api/v1/"):
        view: Any = pattern.callback
        for method in METHODS:
            if hasattr(view.view_class, "get" if method == "HEAD" else method.lower()):
                found.append((path, method))
    return sorted(found)


OPERATIONS = operations()


def requests(made: World) -> Iterator[tuple[str, str, str, object]]:
    """Yield route, method, address and body of every request on a team's objects."""
    for route, method in OPERATIONS:
        address = route
        for name, value in made.parameters.items():
            address = address.replace(f"<str:{name}>", value)
        assert "<" not in address, f"{route} has a parameter that no world knows"
        for body in bodies(route, method, made):
            yield route, method, address, body


def bodies(route: str, method: str, made: World) -> list[object]:
    """Return bodies that would change the object."""
    if method in {"GET", "HEAD", "DELETE"}:
        return [None]
    if route.endswith("/replays"):
        one = ids.to_public(ids.DELIVERY, made.dead.id)
        filters = [{"channel": made.parameters["channel"]}, {"ids": [one]}]
        return [{"filter": given, "dry_run": dry} for given in filters for dry in (True, False)]
    if "/leases/" in route:
        return [{"leases": [made.lease]}]
    if route.endswith("/messages/batch"):
        return [[{"body": "x"}]]
    if route.endswith(("/messages/move", "/messages/cancel")):
        item: dict[str, object] = {"id": made.parameters["message_id"]}
        return [{"messages": [item | ({"priority": 9} if route.endswith("move") else {})]}]
    if route.endswith("/<str:client_id>"):
        return [{"url": "http://127.0.0.1:9/stolen", "max_attempts": 1}]
    if route.endswith("/<str:schedule>"):
        return [{"every_ms": 60_000, "body": "stolen"}]
    if route.endswith("/<str:message_id>"):
        return [{"priority": 9}]
    if method in {"PUT", "PATCH"}:
        return [{"description": "stolen"}]
    return [{}]


def private(made: World) -> set[str]:
    """Return texts that only the owning team may read."""
    named = {name: made.parameters[name] for name in made.parameters if name != "name"}
    del named["channel"]
    return {*named.values(), made.consumer.url, "private answer", made.key.key_id}


@pytest.mark.slow("walks every route")
def test_owners_reach_every_object() -> None:
    """The tests below prove something only if the same requests work for an operator."""
    made = world.make(TeamFactory.create())
    api = Api(ApiKeyFactory.create(admin=True))
    done: dict[str, set[int]] = {}
    for route, method, address, body in requests(made):
        with undone():
            done.setdefault(route, set()).add(api.call(method, address, body).status)
    # 409: a dead delivery cannot be cancelled.
    worked = {200, 201, 202, 204, 207, 409}
    assert {route: statuses for route, statuses in done.items() if not statuses & worked} == {}
    assert set(chain(*done.values())) <= {*worked, 415, 422}


def test_the_owner_reads_its_objects() -> None:
    team = TeamFactory.create()
    made = world.make(team)
    api = Api(ApiKeyFactory.create(team=team, scopes=SCOPES))
    shown = b"".join(
        api.get(address).body for _, method, address, _ in requests(made) if method == "GET"
    )
    unseen = {word for word in private(made) if word.encode() not in shown}
    assert unseen <= {made.key.key_id}


def of_another_team(ours: Team) -> ApiKey:
    return ApiKeyFactory.create(team=TeamFactory.create(), scopes=SCOPES)


def of_another_teams_producer(ours: Team) -> ApiKey:
    return ApiKeyFactory.create(
        producer=ProducerFactory.create(team=TeamFactory.create()), scopes=SCOPES
    )


def of_nobodys_producer(ours: Team) -> ApiKey:
    return ApiKeyFactory.create(scopes=SCOPES)


@pytest.mark.slow("walks every route")
@pytest.mark.trap("another tenant's object by its id")
@pytest.mark.seed("S1-14")
@pytest.mark.parametrize(
    "stranger", [of_another_team, of_another_teams_producer, of_nobodys_producer]
)
def test_another_tenant_finds_and_changes_nothing(stranger: Callable[[Team], ApiKey]) -> None:
    """On a channel that both may use, each sees only its own messages and consumers."""
    ours = TeamFactory.create()
    made = world.make(ours)
    api = Api(stranger(ours))
    objects = {"client_id", "message_id", "delivery_id", "replay_id", "producer", "key_id"}
    objects |= {"schedule", "team"}
    # All producers of a channel share its catalogue.
    kept = [table for table in TABLES if table is not EventType]
    before = rows(kept, but="last_used_at")
    for route, method, address, body in requests(made):
        with undone():
            with unwritten(kept, before, but="last_used_at"):
                answer = api.call(method, address, body)
            check(answer, made, method, address, body)
            if any(f"<str:{name}>" in route for name in objects):
                assert answer.status in {403, 404}, (method, address, answer.body)


def granted_elsewhere(ours: Team) -> ApiKey:
    channel = ChannelFactory.create()
    producer = ProducerFactory.create(team=ours)
    return ApiKeyFactory.create(producer=producer, scopes=SCOPES, channels=[channel.slug])


def teams_key_granted_elsewhere(ours: Team) -> ApiKey:
    channel = ChannelFactory.create()
    return ApiKeyFactory.create(team=ours, scopes=SCOPES, channels=[channel.slug])


def strangers_key_granted_elsewhere(ours: Team) -> ApiKey:
    channel = ChannelFactory.create(external=True)
    return ApiKeyFactory.create(scopes=SCOPES, channels=[channel.slug])


@pytest.mark.slow("walks every route")
@pytest.mark.parametrize(
    "stranger", [granted_elsewhere, teams_key_granted_elsewhere, strangers_key_granted_elsewhere]
)
def test_a_key_for_another_channel_opens_nothing_here(stranger: Callable[[Team], ApiKey]) -> None:
    """The grant decides, even within one team."""
    ours = TeamFactory.create()
    made = world.make(ours)
    api = Api(stranger(ours))
    elsewhere = {f"/api/v1/{name}" for name in ("channels", "producers", "replays", "teams")}
    before = rows(TABLES, but="last_used_at")
    for route, method, address, body in requests(made):
        of_owner = "producer" in route or "team" in route
        own_side = of_owner and stranger is not strangers_key_granted_elsewhere
        with undone():
            with unwritten(TABLES, before, but="last_used_at"):
                answer = api.call(method, address, body)
            if not own_side:
                check(answer, made, method, address, body)
            if answer.status == 207:  # each item is refused on its own
                assert {item["status"] for item in answer.json["items"]} <= {403, 404}
            elif (
                (route not in elsewhere and "/leases/" not in route) or "channel" in str(body)
            ) and not own_side:
                assert answer.status in {403, 404}, (method, address, answer.body)


@pytest.mark.slow("walks every route")
@pytest.mark.seed("S1-21")
def test_an_internal_channel_is_invisible_without_a_grant() -> None:
    """Its name cannot be guessed: responses are the same as for a name that never existed."""
    made = world.make(exposure="internal")
    team = TeamFactory.create()
    api = Api(of_another_team(team))
    before = rows(TABLES, but="last_used_at")
    for route, method, address, body in requests(made):
        with undone():
            with unwritten(TABLES, before, but="last_used_at"):
                answer = api.call(method, address, body)
            check(answer, made, method, address, body)
            if "<str:" in route or "channel" in str(body):
                assert answer.status in {403, 404}, (method, address, answer.body)
            if method == "GET" and "<str:channel>" in route:
                guessed = api.get(address.replace(made.parameters["channel"], "never-was"))
                assert (answer.status, answer.json["code"]) == (404, "unknown_channel")
                assert (guessed.status, guessed.json["code"]) == (404, "unknown_channel")
            if "<str:" not in route:
                assert made.parameters["channel"] not in answer.body.decode() or body is not None


def check(answer: Answer, made: World, method: str, address: str, body: object) -> None:
    """Check that the response contains nothing private beyond what the request itself named."""
    assert answer.status < 500
    text = answer.body.decode()
    leaked = [word for word in private(made) if word in text and word not in f"{address} {body}"]
    assert leaked == [], (method, address, text)
