"""The API fuzzer over sockets: how the web server handles its requests and our responses.

test_fuzz.py sends more such requests to the views in-process, on objects in every state. Here
addresses, header lines and lengths are serialized, sent and parsed.
"""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode

from tests.interfaces.api.test_fuzz import CHECKS, OPAQUE, OPERATIONS, Operation
from tests.support.properties import examples
from tests.support.wire import Web

pytestmark = pytest.mark.e2e
EXAMPLES = examples(few=2, many=4)
"""Requests per operation, half of them valid."""
NOBODY_LISTENS = "http://127.0.0.1:9/hook"


@pytest.mark.trap("fuzzing")
def test_no_request_breaks_an_operation_over_sockets(web: Web) -> None:
    """Every response is documented and complete."""
    before = len(web.log())
    made = furnish(web)
    statuses = set[int]()
    for operation in OPERATIONS.values():
        statuses |= fuzz(web, operation, made)
    assert {200, 201, 204, 400, 404, 422} <= statuses
    assert "Traceback" not in web.log()[before:]


def furnish(web: Web) -> dict[str, str]:
    """Make one object of each kind that needs no worker; return the names by URL parameter."""
    channel, consumer, producer = "/channels/fuzz", "/consumers/one", "/producers/fuzz"
    web.call("PUT", channel, 201)
    web.call("PUT", f"{channel}/event-types/order.paid", 201)
    web.call("PUT", channel + consumer, 201, json={"url": NOBODY_LISTENS})
    web.call("PUT", producer, 201)
    web.call("PUT", "/teams/fuzz", 201)
    web.call("PUT", f"{channel}/schedules/daily", 201, json={"cron": "0 9 * * *", "body": "x"})
    key = web.call("POST", f"{producer}/keys", 201, json={"all_channels": True})
    message = web.call("POST", f"{channel}/messages", 202, json={})
    replay = web.call("POST", "/replays", 202, json={"filter": {"channel": "fuzz"}})
    return {
        "channel": "fuzz",
        "client_id": "one",
        "name": "order.paid",
        "schedule": "daily",
        "ordering_key_id": re.sub("^msg", "oky", message["id"]),
        "producer": "fuzz",
        "team": "fuzz",
        "key_id": key["key_id"],
        "message_id": message["id"],
        "delivery_id": re.sub("^msg", "dlv", message["id"]),
        "replay_id": replay["id"],
    }


def fuzz(web: Web, operation: Operation, made: dict[str, str]) -> set[int]:
    """Send valid and invalid requests to an operation; return the statuses."""
    real = {name.name: made[name.name] for name in operation.path_parameters}
    headers = {"Authorization": f"Bearer {web.key}"}
    chosen = [check for check in CHECKS if operation.definition.raw["operationId"] != OPAQUE]
    sound = operation.as_strategy(path_parameters=real)
    wrong = operation.as_strategy(GenerationMode.NEGATIVE)
    seen = set[int]()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=sound | wrong)
    def run(case: Case[Any]) -> None:
        for name in ("If-Match", "If-None-Match"):
            case.headers.pop(name, None)
        if isinstance(case.body, dict) and case.path.endswith("/consumers/{client_id}"):
            case.body["url"] = NOBODY_LISTENS
        if isinstance(case.body, dict) and case.path.endswith("/keys"):
            case.body |= {"scopes": ["publish"], "channels": ["fuzz"], "all_channels": False}
        response = case.call(base_url=f"http://127.0.0.1:{web.port}", headers=headers, timeout=60)
        case.validate_response(response, checks=chosen or CHECKS[:-1])
        seen.add(response.status_code)

    run()
    return seen
