"""Publish over gRPC: single messages, and streams whose messages keep their order."""

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from delivery.grpc.hookstation_pb2 import PublishRequest
from tests.support.broker import Broker
from tests.support.streams import Client

pytestmark = pytest.mark.e2e


def requests(channel: str, bodies: list[str], **options: Any) -> list[PublishRequest]:
    return [PublishRequest(channel=channel, body=text.encode(), **options) for text in bodies]


def test_a_stream_keeps_the_order_of_its_messages(
    broker: Broker, client: Client, channel: str
) -> None:
    bodies = [str(number) for number in range(500)]
    batches = [requests(channel, bodies[start : start + 7]) for start in range(0, 500, 7)]
    answers = client.publish_stream(*batches)

    assert [len(answer) for answer in answers] == [len(batch) for batch in batches]
    ids = [result.published.id for answer in answers for result in answer]
    assert ids == sorted(ids)
    assert len(set(ids)) == 500
    with client.receive(channel, credits=500) as stream:
        found = stream.messages(500)
    assert {one.id: one.body.decode() for one in found} == dict(zip(ids, bodies, strict=True))


def test_each_message_of_a_stream_has_its_own_result(
    broker: Broker, client: Client, channel: str
) -> None:
    schema = {"type": "object"}
    broker.call("PUT", f"/channels/{channel}/event-types/strict", 201, json={"schema": schema})
    batch = [
        PublishRequest(channel=channel, body=b"{}", event_type="strict"),
        PublishRequest(channel=channel, body=b"1", event_type="strict"),
        PublishRequest(channel=channel, body=b"{}", priority=10),
        PublishRequest(channel="there-is-none", body=b"{}"),
        PublishRequest(channel=channel, body=b"{}", idempotency_key="k"),
        PublishRequest(channel=channel, body=b"[]", idempotency_key="k"),
        PublishRequest(channel=channel, body=b"{}", deliver_at=Timestamp(seconds=2**40)),
        PublishRequest(channel=channel, body=b"{}", headers={"bad name": "x"}),
        PublishRequest(channel=channel, body=b"{}"),
    ]
    (results,) = client.publish_stream(batch)
    said = [
        (result.problem.code, result.problem.field) if result.HasField("problem") else "stored"
        for result in results
    ]
    assert said == [
        "stored",
        ("schema_violation", "body"),
        ("invalid_fields", "priority"),
        ("unknown_channel", ""),
        "stored",
        ("idempotency_conflict", "idempotency_key"),
        ("invalid_fields", "deliver_at"),
        ("invalid_fields", "headers"),
        "stored",
    ]
