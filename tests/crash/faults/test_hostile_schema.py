"""A team registers hostile schemas and sends the worst bodies for them; others stay fast."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import requests
from django.db import connection

from tests.crash.faults.conftest import PATH, installed
from tests.crash.faults.processes import check_same_processes, processes
from tests.crash.traffic import RECOVERY_S, Traffic
from tests.support.broker import Broker, database_with_key
from tests.support.receiver import Receiver

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(connection.vendor == "mysql", reason="runs in the SQLite part"),
]
SENDERS = 4
"""Concurrent requests with the same body."""
MAX_S = 15.0
"""The longest that other requests may take, in seconds. A body may keep a processor busy for
seconds (docs/security.md), and the machine may be busy. Backtracking engines need years."""


class Attack(NamedTuple):
    """An accepted schema, and a body that other validators take very long for."""

    schema: Any
    body: str
    status: int
    """The response status for the body."""


MOST = 1_000_000
"""Bytes, a little below the limit on bodies."""
ALMOST = json.dumps("a" * MOST + "!")
ATTACKS = {
    "nested": Attack({"pattern": "^(a+)+$"}, ALMOST, 422),
    "either": Attack({"pattern": "^(a|a|a)*$"}, ALMOST, 422),
    "words": Attack({"pattern": r"^(\w+\s?)*$"}, ALMOST, 422),
    "names": Attack(
        {"patternProperties": {"^(a+)+$": False}},
        json.dumps({f"{'a' * 500}!{number}": 0 for number in range(MOST // 600)}),
        202,
    ),
    "self": Attack({"items": {"$ref": "#"}}, MOST // 2 * "[" + MOST // 2 * "]", 422),
    "wide": Attack(
        {"items": {"enum": list(range(1000))}},
        json.dumps([number % 1000 for number in range(60_000)]),
        202,
    ),
    "unique": Attack(
        {"uniqueItems": True}, json.dumps([[number] for number in range(MOST // 12)]), 202
    ),
}
DEEP = 2_000
REFUSED = {
    "doubles": json.dumps(
        {
            "$ref": "#/$defs/p0",
            "$defs": {
                f"p{number}": {"anyOf": 2 * [{"$ref": f"#/$defs/p{number + 1}"}]}
                for number in range(60)
            }
            | {"p60": True},
        }
    ),
    "repeats": json.dumps({"pattern": "((x{500}){500}){500}"}),
    "looks": json.dumps({"pattern": "^(?=(a+)+$)"}),
    "deep": '{"items": ' * DEEP + "true" + "}" * DEEP,
    "large": json.dumps({"enum": ["x" * 1000] * 2000}),
}
"""JSON documents that are refused as schemas."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, consumer: Receiver) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("schemas")
    with database_with_key(folder) as (url, key):
        for one in installed(folder, url, consumer, key=key):
            one.call("PUT", "/channels/hostile", 201, json={})
            yield one


@contextmanager
def nobody_waits(broker: Broker, consumer: Receiver, name: str) -> Iterator[None]:
    """Inside the block others publish, get responses in time, and their messages arrive."""
    before = processes(broker)
    with Traffic(broker, name=name) as traffic:
        traffic.flows()
        yield
        traffic.flows()
    assert {answer.status for answer in traffic.answers} == {202}
    assert max(answer.ended - answer.began for answer in traffic.answers) < MAX_S
    traffic.all_arrived(consumer, PATH)
    check_same_processes(broker, before)


@pytest.mark.trap("a pattern that backtracks")
@pytest.mark.parametrize("name", ATTACKS)
def test_slow_schema_patterns_do_not_block_other_callers(
    broker: Broker, consumer: Receiver, name: str
) -> None:
    attack = ATTACKS[name]
    broker.call("PUT", f"/channels/hostile/event-types/{name}", 201, json={"schema": attack.schema})
    headers = {**broker.http.headers, "Hookstation-Event-Type": name}
    answers: list[int] = []

    def send() -> None:
        answer = requests.post(
            f"{broker.base}/channels/hostile/messages",
            data=attack.body,
            headers=headers | {"Content-Type": "application/json"},
            timeout=RECOVERY_S,
        )
        answers.append(answer.status_code)

    with nobody_waits(broker, consumer, name):
        senders = [threading.Thread(target=send) for _ in range(SENDERS)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    assert answers == SENDERS * [attack.status]


@pytest.mark.trap("a schema that grows exponentially")
def test_exponential_and_endless_schemas_are_refused_without_blocking(
    broker: Broker, consumer: Receiver
) -> None:
    with nobody_waits(broker, consumer, "refused"):
        for name, schema in REFUSED.items():
            answer = broker.http.put(
                f"{broker.base}/channels/hostile/event-types/{name}",
                data=f'{{"schema": {schema}}}',
                headers={"Content-Type": "application/json"},
                timeout=RECOVERY_S,
            )
            assert answer.status_code in (400, 413, 422), (name, answer.text)
