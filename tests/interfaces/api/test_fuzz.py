"""A fuzzer sends requests made from the OpenAPI document: none may break an operation."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
import schemathesis
from django.core.signals import got_request_exception
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from broker_site.server.wsgi import application
from channels_app.core import ids
from channels_app.models import ApiKey
from delivery.models import Replay
from tests.support import calling, world
from tests.support.api import Api
from tests.support.factories import ApiKeyFactory, bearer
from tests.support.properties import examples

EXAMPLES = examples(few=6, many=10)
"""Requests per operation, the same in each run, so that failures can be reproduced."""
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
ITEM = ("content_type", "event_type", "ordering_key", "headers")
OPAQUE = "getMessageBody"
"""Returns a producer's bytes, whatever their content type says."""
Operation = APIOperation[Any, Any, Any, Any]
Request = Case[Any]

pytestmark = pytest.mark.django_db(transaction=True)


def document() -> dict[str, Any]:
    """Return the document without its security, so that no request uses a made-up key."""
    found = deepcopy(calling.document())
    for operations in found["paths"].values():
        for operation in operations.values():
            operation.pop("security", None)
    return found


DOCUMENT = document()


def operations() -> dict[str, Operation]:
    """Return every operation of the document by its id."""
    found = [one.ok() for one in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()]  # type: ignore[union-attr]  # all can be read
    return {one.definition.raw["operationId"]: one for one in found}


OPERATIONS = operations()


def tag_of(operation: Operation) -> str:
    """Return the first tag of an operation."""
    return (operation.tags or [""])[0]


@pytest.mark.slow("a fuzzer makes up requests")
@pytest.mark.trap("fuzzing")
@pytest.mark.parametrize("tag", sorted({tag_of(one) for one in OPERATIONS.values()}))
def test_no_request_breaks_an_operation(tag: str) -> None:
    """Responses have documented statuses, types, headers and bodies only, and never a 5xx."""
    key = ApiKeyFactory.create(admin=True)
    for name, operation in OPERATIONS.items():
        if tag_of(operation) == tag:
            statuses = fuzz(operation, key, EXAMPLES, world.make())
            assert any(status < 300 for status in statuses), f"{name} never worked: {statuses}"


WRONG: tuple[Any, ...] = (
    *(None, True, 7, -1, 1.5, 10**400, "", "text", "\x00", "\ud800"),
    *([], [None], [[]], [{}], ["a", "a"], {}, {"a": None}, {"id": None}),
)

WRONG_IN_A_FIELD: tuple[Any, ...] = (None, True, 10**400, "\x00", [{}])


@pytest.mark.slow("sends every field of every operation in all the wrong types")
@pytest.mark.trap("a field of the wrong type")
def test_no_wrong_type_breaks_an_operation() -> None:
    made = world.make()
    api = Api(ApiKeyFactory.create(admin=True))
    api.raises = False
    sent = 0
    for name, operation in OPERATIONS.items():
        known = json_fields(operation)
        if known is None:
            continue
        path = operation.path
        for one in operation.path_parameters:
            path = path.replace(f"{{{one.name}}}", str(made.parameters[one.name]))
        # test_fields.py gives each kind of field any JSON value, test_problems.py sends other
        # bodies that are no objects.
        whole = (None, [], {}, {"a": None}) if known else WRONG
        bodies = [*whole, *({field: wrong} for field in known for wrong in WRONG_IN_A_FIELD)]
        bodies += [dict.fromkeys(known, wrong) for wrong in WRONG]
        for body in bodies:
            with bugs():
                answer = api.call(operation.method.upper(), path, json.dumps(body).encode())
            assert answer.status < 500, f"{name} with {body!r:.200}: {answer.body!r}"
            sent += 1
    assert sent > 1000, sent


def json_fields(operation: Operation) -> list[str] | None:
    """Return the fields of an operation's JSON body; None if it takes none."""
    body = operation.definition.raw.get("requestBody", {}).get("content", {})
    if "application/json" not in body:
        return None
    schema: dict[str, Any] = body["application/json"]["schema"]
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return list(schema.get("properties", {}))


def fuzz(
    operation: Operation, key: ApiKey | None, examples: int, made: world.World
) -> Counter[int]:
    """Send valid and invalid requests to one operation, on real objects and on others."""
    # Each team may have only a few running replays.
    Replay.objects.exclude(id=made.replay.id).delete()
    headers = {"Authorization": bearer(key)} if key else {}
    chosen = [check for check in CHECKS if operation.definition.raw["operationId"] != OPAQUE]
    seen: Counter[int] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        # No shrinking: a second run would use different objects.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(operation, made))
    def run(case: Request) -> None:
        with bugs():
            response = case.call(app=application, headers=headers)
        case.validate_response(response, checks=chosen or CHECKS[:-1])
        seen[response.status_code] += 1

    run()
    return seen


def cases(operation: Operation, made: world.World) -> st.SearchStrategy[Request]:
    """Return valid and invalid requests, for existing and missing objects."""
    real = {name.name: made.parameters[name.name] for name in operation.path_parameters}
    if operation.path.endswith("/cancel") and "delivery_id" in real:
        real["delivery_id"] = ids.to_public(ids.DELIVERY, made.queued.id)
    if operation.path.endswith("/receive"):
        real["client_id"] = made.pull.client_id
    sound = operation.as_strategy(path_parameters=real).map(at_once)
    wanted = sound.map(lambda case: usable(case, made))
    kinds = [wanted, wanted, sound]
    if real:
        kinds.append(operation.as_strategy().map(at_once))
    kinds.append(operation.as_strategy(GenerationMode.NEGATIVE))
    if real and (operation.query or operation.body):
        kinds.append(operation.as_strategy(GenerationMode.NEGATIVE, path_parameters=real))
    return st.one_of(kinds)


def at_once(case: Request) -> Request:
    """Return the same request without long polling."""
    if isinstance(case.body, dict) and case.body.get("wait_s"):
        case.body["wait_s"] = 0
    return case


def usable(case: Request, made: world.World) -> Request:
    """Fill in what the document cannot express: existing objects, and allowed URLs."""
    for name in ("If-Match", "If-None-Match"):
        case.headers.pop(name, None)
    if not isinstance(case.body, dict):
        return case
    if case.path.endswith("/consumers/{client_id}"):
        case.body["url"] = "http://127.0.0.1:9/hook"
    if case.path.endswith("/keys"):
        case.body |= {"channels": [made.parameters["channel"]], "all_channels": False}
        case.body |= {"scopes": ["publish"]}
    if case.path.endswith("/skip"):
        case.body.pop("head", None)  # skip any head
    if "leases" in case.body:
        case.body["leases"] = [made.lease]
    if case.path.endswith("/schedules/{schedule}"):
        case.body |= {"cron": None, "every_ms": 60_000, "timezone": "UTC", "end_at": None}
        case.body |= {"body": "x", "body_base64": None} | dict.fromkeys(ITEM)
    if "due_at" in case.body:
        case.body["due_at"] = "2026-01-01T00:00:00Z"  # means now; a far future is refused
    if isinstance(wanted := case.body.get("filter"), dict):
        wanted |= {"channel": made.parameters["channel"], "consumer": made.consumer.client_id}
    return case


@contextmanager
def bugs() -> Iterator[None]:
    """Raise the exception behind a 500."""
    found: list[BaseException | None] = []

    def note(**_: Any) -> None:
        found.append(sys.exc_info()[1])

    got_request_exception.connect(note)
    try:
        yield
    finally:
        got_request_exception.disconnect(note)
    for error in found:
        raise AssertionError("the view failed") from error
