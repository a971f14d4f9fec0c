"""The examples of the OpenAPI document are recorded responses.

tests/interfaces/api/test_openapi.py checks that they fit its schemas.

When a response changes on purpose, ``make golden`` records it anew.
"""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from channels_app.api import openapi
from delivery.queue import high_watermark
from tests.interfaces.api.test_statuses import (
    OPERATIONS,
    RECIPES,
    RECORDED,
    SPECIAL,
    Operation,
    Request,
    request,
)
from tests.support import world
from tests.support.factories import ApiKeyFactory, DeliveryFactory, MessageFactory, TeamFactory
from tests.support.receiver import Receiver
from tests.support.snapshot import undone
from tests.support.world import World

PATH = Path(openapi.__file__).with_name("examples.json")
LATER = datetime(2030, 1, 1, 8, 30, tzinfo=UTC)
REASON = "The printer was out of paper."


def bodies(made: World) -> dict[str, Any]:
    """Return request bodies for the operations whose schema allows any."""
    lease = {"leases": [made.lease]}
    channel, message = made.parameters["channel"], made.parameters["message_id"]
    return {
        "putChannel": {"description": "Orders of the shop", "retention_days": 60},
        "patchChannel": {"paused": True},
        "putConsumer": {
            "url": made.consumer.url,
            "event_types": ["order.*"],
            "retry": "fast",
            "retry_overrides": [{"event_types": ["order.refunded"], "max_attempts": 3}],
        },
        "patchConsumer": {"max_attempts": 5, "rate_limit": {"per_second": 50, "burst": 10}},
        "rotateConsumerSecret": {"overlap_s": 3600},
        "createBackfill": {"event_types": ["order.*"], "reason": REASON},
        "putEventType": {
            "description": "An order was paid.",
            "schema": {"type": "object", "required": ["id"]},
            "example": {"id": 7, "total": "12.50"},
        },
        "patchEventType": {"deprecated": True},
        "publishMessage": {"id": 7, "total": "12.50"},
        "publishBatch": [
            {"body": '{"id": 8}', "event_type": made.parameters["name"], "priority": 7},
            {"body": '{"total": "9.90"}', "event_type": made.parameters["name"]},
        ],
        "putSchedule": {"cron": "0 9 * * 1-5", "timezone": "Europe/Paris", "body": "{}"},
        "patchSchedule": {"cron": "30 8 * * 1-5"},
        "putProducer": {"rate_limit": {"per_second": 100, "burst": 200}},
        "patchProducer": {"default_priority": 6},
        "createApiKey": {"label": "web shop", "scopes": ["publish"], "channels": [channel]},
        "rotateApiKey": {"overlap_s": 3600},
        "putTeam": {"name": "Acme"},
        "patchTeam": {"max_waiting_messages": 100_000},
        "patchMessage": {"priority": 9, "due_at": "2030-01-01T08:00:00.000Z"},
        "moveMessages": {
            "messages": [{"id": message, "version": 1, "due_at": "2030-01-01T08:00:00.000Z"}],
            "reason": REASON,
        },
        "cancelMessages": {"messages": [{"id": message, "version": 1}], "reason": REASON},
        "receiveMessages": {"max": 10, "wait_s": 20, "lease_s": 60, "worker_id": "packer-1"},
        "ackLeases": lease,
        "nackLeases": lease | {"delay_s": 30, "error": REASON},
        "extendLeases": lease | {"lease_s": 60},
        "releaseLeases": lease | {"delay_s": 10},
        "createReplay": {
            "filter": {"channel": channel, "outcomes": ["server_error"]},
            "reason": REASON,
        },
        "skipOrderingKey": {"reason": REASON},
        "pauseOrderingKey": {"reason": REASON},
        "resumeOrderingKey": {"reason": REASON},
        "replayDelivery": {"reason": REASON},
        "cancelDelivery": {"reason": REASON},
        "cancelReplay": {"reason": REASON},
    }


HEADERS = {"publishMessage": {"Idempotency_Key": "order-7"}}
QUERIES = {
    "getTimelineHistogram": "?from=2030-01-01T08:00:00Z&to=2030-01-01T10:00:00Z&width_s=3600"
}
PROBLEMS = (("getChannel", 404), ("putConsumer", 422))
"""Errors recorded as examples for all operations."""


@pytest.mark.slow("plays every operation")
@pytest.mark.django_db
def test_examples_equal_real_responses(
    file_regression: Any, monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    # Include deliveries from a moment ago.
    monkeypatch.setattr(high_watermark, "MARGIN", timedelta(minutes=-1))
    made, key = world.make(TeamFactory.create(name="Acme")), ApiKeyFactory.create(admin=True)
    DeliveryFactory.create(consumer=made.pull)
    MessageFactory.create(
        channel=made.consumer.channel,
        event_type=made.parameters["name"],
        dispatched=True,
        due_at=LATER,
    )
    made.consumer.url = receiver.url("/hooks")
    made.consumer.save()

    recorded: dict[str, Any] = {}
    for operation in OPERATIONS:
        for status in sorted(operation.statuses & RECORDED):
            sent, answer = played(operation, status, made, key)
            if answer is not None:
                entry = recorded.setdefault(operation.name, {"responses": {}})
                entry["responses"][str(status)] = answer
                if isinstance(sent.body, dict | list):
                    entry.setdefault("request", sent.body)
    problems = [
        played(operation, status, made, key)[1]
        for name, status in PROBLEMS
        for operation in OPERATIONS
        if operation.name == name
    ]
    examples = {
        "parameters": made.parameters | {"Idempotency-Key": "order-7"},
        "operations": recorded,
        "problems": problems,
    }
    text = json.dumps(examples, indent=1, ensure_ascii=False)
    file_regression.check(renamed(text, made, receiver) + "\n", fullpath=PATH, encoding="utf-8")


def played(operation: Operation, status: int, made: World, key: Any) -> tuple[Request, Any]:
    """Send a request that gets this status; return it and the response's JSON, None without any."""
    with undone():
        sent = request(operation, made, key)
        if operation.kinds:
            sent.body = bodies(sent.made).get(operation.name, sent.body)
        sent.headers |= HEADERS.get(operation.name, {})
        sent.query = QUERIES.get(operation.name, "")
        SPECIAL.get((operation.name, status), RECIPES[status])(sent)
        answer = sent.send()
    assert answer.status == status, (operation.name, answer.body)
    kinds = operation.described["responses"][str(status)].get("content", {})
    return sent, None if openapi.BYTES in kinds or not kinds else answer.json


def renamed(text: str, made: World, receiver: Receiver) -> str:
    """Replace generated names, ids and times by those that the documentation uses."""
    world_ = made.parameters
    names = {
        world_["channel"]: "orders",
        world_["client_id"]: "billing",
        made.pull.client_id: "packing",
        world_["name"]: "order.paid",
        world_["schedule"]: "report",
        world_["producer"]: "shop",
        world_["team"]: "acme",
        receiver.url("/hooks"): "https://billing.example.com/hooks",
    }
    for name, known in names.items():
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", known, text)
    for pattern, known in KNOWN.items():
        text = re.sub(pattern, known, text)
    return text


KNOWN = {
    r"\bconsumer-\d+\b": "shipping",
    r"\b(msg_test|msg|dlv|att|rpl|oky)_[0-9a-z]{13}\b": r"\1_06xvz43r2p400",
    r"\b(lse|hsk|whsec|whpk)_[A-Za-z0-9_+/=-]+": r"\1_...",
    r'(key:|_id": ")[a-z2-7]{16}(?=")': r"\1bm4xk7qzr3tfw2ya",
    r"/inbound/[\w-]+": "/inbound/kVIgXSMFUUZ0ZepIs6rMppZoW08nsOCg",
    r"\b202\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z": "2026-11-21T08:08:08.383Z",
    r'(_ms": )\d+(?=,\n +"(first_byte_ms|total_ms|remote_address))': r"\g<1>2",
    r'"remote_address": "[^"]+"': '"remote_address": "203.0.113.9:443"',
    r"http://127\.0\.0\.1:8000": "https://broker.example.com",
}
"""Values that differ between recordings, or mean nothing to a reader."""
