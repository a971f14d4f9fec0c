"""Every documented status of every operation in the OpenAPI document can be provoked."""

import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection

from channels_app.access.principal import Principal
from channels_app.core import ids
from channels_app.ingest import body as request_body
from channels_app.ingest import storage
from channels_app.ingest.concurrency import ConcurrencyLimit
from channels_app.models import ApiKey
from delivery import replay
from delivery.models import Delivery
from delivery.transport import test_delivery
from tests.support import world
from tests.support.api import Answer, Api
from tests.support.calling import document
from tests.support.factories import ApiKeyFactory, ConsumerFactory
from tests.support.snapshot import undone
from tests.support.world import World

pytestmark = pytest.mark.django_db


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as the document describes it."""

    name: str
    method: str
    path: str
    described: dict[str, Any]

    @property
    def statuses(self) -> set[int]:
        return {int(status) for status in self.described["responses"]}

    @property
    def kinds(self) -> set[str]:
        """Content types of the body; empty if the operation takes none."""
        return set(self.described.get("requestBody", {}).get("content", {}))


def operations() -> list[Operation]:
    """Return all operations."""
    return [
        Operation(described["operationId"], method.upper(), path, described)
        for path, methods in document()["paths"].items()
        for method, described in methods.items()
    ]


OPERATIONS = operations()
RECORDED = {200, 201, 202, 207}
"""Statuses that test_examples.py gets from every operation, to record the bodies."""
STATUSES = sorted(set.union(*(operation.statuses for operation in OPERATIONS)) - RECORDED)


@dataclass(slots=True)
class Request:
    """A valid request, which each recipe breaks in one way."""

    operation: Operation
    made: World
    key: ApiKey | None
    body: object
    query: str = ""
    kind: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def send(self) -> Answer:
        path = re.sub(r"{(\w+)}", lambda name: self.made.parameters[name[1]], self.operation.path)
        return Api(self.key).call(
            self.operation.method,
            path + self.query,
            self.body,
            content_type=self.kind,
            **self.headers,
        )


BODIES: dict[str, Callable[[World], object]] = {
    "putConsumer": lambda made: {"url": made.consumer.url},
    "createApiKey": lambda made: {"all_channels": True},
    "putSchedule": lambda made: {"every_ms": 60_000, "body": "x"},
    "publishMessage": lambda made: b"x",
    "publishBatch": lambda made: [{"body": "x"}],
    "patchMessage": lambda made: {"priority": 5},
    "moveMessages": lambda made: {"messages": []},
    "cancelMessages": lambda made: {"messages": []},
    **dict.fromkeys(
        ("ackLeases", "nackLeases", "extendLeases", "releaseLeases"),
        lambda made: {"leases": [made.lease]},
    ),
    "createReplay": lambda made: {"filter": {"channel": made.parameters["channel"]}},
}
"""Request bodies where {} is not enough."""


def request(operation: Operation, made: World, key: ApiKey) -> Request:
    """Return a valid request, with its own copy of the parameters for recipes to change."""
    made = deepcopy(made)
    if operation.name == "cancelDelivery":
        made.parameters["delivery_id"] = ids.to_public(ids.DELIVERY, made.queued.id)
    if operation.name == "receiveMessages":
        made.parameters["client_id"] = made.pull.client_id
    if operation.name == "renewInboundAddress":
        made.consumer.ack = {"mode": "callback", "correlation": {"signature": None}}
        made.consumer.save()
    make = BODIES.get(operation.name)
    body: object = {} if operation.kinds else None
    if make is not None:
        body = make(made)
    return Request(operation, made, key, body)


def as_new(wanted: Request) -> None:
    """Use a name that does not exist yet."""
    last = re.findall(r"{(\w+)}", wanted.operation.path)[-1]
    wanted.made.parameters[last] = "brand_new"


def repeated(wanted: Request) -> None:
    """Send the same message a second time."""
    wanted.headers["Idempotency_Key"] = "once"
    assert wanted.send().status == 202


def looking(wanted: Request) -> None:
    """Request a dry run."""
    assert isinstance(wanted.body, dict)
    wanted.body |= {"dry_run": True}


def malformed(wanted: Request) -> None:
    """Send an incomplete body."""
    wanted.body = b"{"
    if wanted.operation.name == "publishMessage":
        wanted.headers["Content_Length"] = "two"


def unknown(wanted: Request) -> None:
    """Use names that never existed."""
    if wanted.operation.name == "createReplay":
        wanted.body = {"filter": {"channel": "never_was"}}
    for name in wanted.made.parameters:
        wanted.made.parameters[name] = "never_was"


def keyless(wanted: Request) -> None:
    """Send no key."""
    wanted.key = None


def scopeless(wanted: Request) -> None:
    """Use a key without any permission."""
    wanted.key = ApiKeyFactory.create(scopes=["nothing"])


def chunked(wanted: Request) -> None:
    """Send a body without Content-Length."""
    wanted.body = None
    wanted.headers["Transfer_Encoding"] = "chunked"


def stale(wanted: Request) -> None:
    """Require a version that is not current."""
    wanted.headers["If_Match"] = '"999999"'


def large(wanted: Request) -> None:
    """Announce a body that is too large."""
    wanted.headers["Content_Length"] = "99999999999"


def other_kind(wanted: Request) -> None:
    """Use a content type or an encoding that is not accepted."""
    if wanted.operation.name == "publishMessage":
        wanted.headers["Content_Encoding"] = "gzip"
    else:
        wanted.body, wanted.kind = b"x", "text/plain"


def invalid(wanted: Request) -> None:
    """Use an unknown or invalid field, parameter or header."""
    if wanted.operation.name == "publishMessage":
        wanted.headers["Hookstation_Priority"] = "urgent"
    elif wanted.operation.name == "publishBatch":
        wanted.body = [{"body": "x"}] * 1001
    elif wanted.operation.kinds or wanted.operation.name == "testConsumer":
        wanted.body = {"nonsense": 1}
    elif wanted.operation.method == "GET":
        wanted.query = "?nonsense=1"
    else:
        wanted.headers["If_Match"] = "no tag"


def known(wanted: Request) -> None:
    """Use If-None-Match, so that the known version gets 304."""
    wanted.headers["If_None_Match"] = "*"


def nothing(wanted: Request) -> None:
    """Change nothing."""


def without_storage(wanted: Request) -> None:
    """Make every statement fail until the end of the test."""

    def fail(*_: object) -> None:
        raise OperationalError(2006, "MySQL server has gone away")

    connection.execute_wrappers.append(fail)


def without_room(wanted: Request) -> None:
    """Make the disk appear full until the end of the test."""
    storage.disks._short = storage.Room(Path("/"), 0, 0)
    storage.disks._looked_at = float("inf")


def over_quota(wanted: Request) -> None:
    """Exceed the limit of waiting bytes in the channel."""
    wanted.made.consumer.channel.max_waiting_bytes = 1
    wanted.made.consumer.channel.save()


RECIPES: dict[int, Callable[[Request], None]] = {
    200: nothing,
    201: nothing,
    202: nothing,
    204: nothing,
    207: nothing,
    304: known,
    400: malformed,
    401: keyless,
    403: scopeless,
    404: unknown,
    411: chunked,
    412: stale,
    413: large,
    415: other_kind,
    422: invalid,
    429: nothing,  # the test itself sets the limits
    503: without_storage,
    507: without_room,
}


def conflicting(wanted: Request) -> None:
    """Put the object into a state that conflicts with the operation."""
    made, name = wanted.made, wanted.operation.name
    match name:
        case "publishMessage":
            repeated(wanted)
            wanted.body = b"another"
        case "createBackfill":
            made.consumer.state = "retired"
            made.consumer.save()
        case "testConsumer":
            made.parameters["client_id"] = ConsumerFactory.create(
                channel=made.consumer.channel, pull=True
            ).client_id
        case "receiveMessages":
            made.parameters["client_id"] = made.consumer.client_id
        case "pauseConsumer":
            made.consumer.state = "disabled"
            made.consumer.save()
        case "renewInboundAddress":
            made.consumer.ack = None
            made.consumer.save()
        case "cancelDelivery":
            made.parameters["delivery_id"] = ids.to_public(ids.DELIVERY, made.dead.id)
        case "skipOrderingKey":
            wanted.body = {"head": ids.to_public(ids.DELIVERY, made.queued.id)}
        case "replayDelivery":
            made.parameters["delivery_id"] = ids.to_public(ids.DELIVERY, made.queued.id)
        case "cancelMessage":
            queued = Delivery.objects.filter(id=made.queued.id)
            queued.update(state="in_flight", attempt_count=1, lease_owner=1)
        case "patchMessage":
            Api(wanted.key).delete(f"/api/v1/messages/{made.parameters['message_id']}")
        case "rotateApiKey":
            revoked = f"/api/v1/producers/{made.producer.slug}/keys/{made.key.key_id}"
            assert Api(wanted.key).delete(revoked).status == 204
        case "runSchedule":
            made.producer.disabled = True
            made.producer.save()
        case "createReplay":
            while wanted.send().status == 202:
                pass
        case "cancelReplay":
            replay.cancel(made.replay.id, Principal("test"), now=made.replay.created_at)
        case _:
            raise AssertionError(f"nobody knows what {name} may conflict with")


SPECIAL: dict[tuple[str, int], Callable[[Request], None]] = {
    ("publishMessage", 200): repeated,
    ("createReplay", 200): looking,
    ("createBackfill", 200): looking,
    ("putChannel", 201): as_new,
    ("putConsumer", 201): as_new,
    ("putEventType", 201): as_new,
    ("putProducer", 201): as_new,
    ("putSchedule", 201): as_new,
    ("putTeam", 201): as_new,
    ("runSchedule", 429): over_quota,
}


@pytest.mark.parametrize("status", STATUSES)
def test_every_documented_status_is_real(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {}
    if status == 429:
        monkeypatch.setattr(test_delivery, "MAX_CONCURRENT", 0)
        monkeypatch.setattr(request_body, "bodies", ConcurrencyLimit(0))
    made, key = world.make(), ApiKeyFactory.create(admin=True)
    for operation in OPERATIONS:
        if status not in operation.statuses:
            continue
        with undone():
            wanted = request(operation, made, key)
            recipe = conflicting if status == 409 else RECIPES[status]
            SPECIAL.get((operation.name, status), recipe)(wanted)
            try:
                answer = wanted.send()
            finally:
                connection.execute_wrappers.clear()
        complete = status < 400 or answer.is_problem
        if answer.status != status or not complete:
            wrong[operation.name] = (answer.status, answer.body[:200])
        if status in {429, 503, 507}:
            assert int(answer.header("Retry-After") or 0) > 0
        if status == 401:
            assert (answer.header("WWW-Authenticate") or "").startswith("Bearer")
    assert wrong == {}
