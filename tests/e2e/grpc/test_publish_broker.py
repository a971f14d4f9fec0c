"""Publish over gRPC: single messages, and streams whose messages keep their order."""

from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from delivery.grpc.hookstation_pb2 import PublishRequest
from tests.support.broker import Broker
from tests.support.streams import Client, code_of, problem_of

pytestmark = pytest.mark.e2e


def message(broker: Broker, id_: str) -> dict[str, Any]:
    found: dict[str, Any] = broker.call("GET", f"/messages/{id_}", 200)
    return found


def requests(channel: str, bodies: list[str], **options: Any) -> list[PublishRequest]:
    return [PublishRequest(channel=channel, body=text.encode(), **options) for text in bodies]


def test_a_message_is_stored_with_all_its_options(
    broker: Broker, client: Client, channel: str
) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    at, end = Timestamp(), Timestamp()
    at.FromDatetime(later)
    end.FromDatetime(later + timedelta(hours=1))
    sent = client.publish(
        channel,
        b"\x00\xff",
        content_type="application/x-thing",
        idempotency_key="only-once",
        event_type="thing.made",
        priority=0,
        deliver_at=at,
        expires_at=end,
        ordering_key="k",
        headers={"Shop": "berlin"},
    )
    found = message(broker, sent.id)
    body = broker.http.get(f"{broker.base}/messages/{sent.id}/body", timeout=60)

    assert (sent.duplicate, sent.matched_consumers) == (False, 1)
    assert sent.due_at == at
    assert body.content == b"\x00\xff"
    assert found["content_type"] == "application/x-thing"
    assert (found["event_type"], found["priority"], found["ordering_key"]) == ("thing.made", 0, "k")
    assert found["due_at"] == later.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert found["expires_at"] is not None
    assert found["headers"] == {"Shop": "berlin"}
    assert found["idempotency_key"] == "only-once"


def test_a_repeat_is_not_stored(broker: Broker, client: Client, channel: str) -> None:
    first = client.publish(channel, b"one", idempotency_key="k")
    again = client.publish(channel, b"one", idempotency_key="k")
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(grpc.RpcError) as refused:
        client.publish(channel, b"two", idempotency_key="k")
    assert problem_of(refused.value).code == "idempotency_conflict"


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


def test_a_rate_limit_refuses_with_a_time_to_wait(
    broker: Broker, client: Client, channel: str
) -> None:
    limit = {"rate_limit": {"per_second": 0.5, "burst": 1}}
    broker.call("PUT", "/producers/limited", 201, json=limit)
    asked = {"channels": [channel]}
    key = broker.call("POST", "/producers/limited/keys", 201, json=asked)["key"]
    with Client.of(broker, key) as limited:
        limited.publish(channel)
        with pytest.raises(grpc.RpcError) as refused:
            limited.publish(channel)
    assert code_of(refused.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
    problem = problem_of(refused.value)
    assert (problem.status, problem.code) == (429, "rate_limited")
    assert 0 < problem.retry_after_s <= 3
