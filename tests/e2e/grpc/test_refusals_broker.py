"""Refused and hostile gRPC calls: the same errors as over REST, and a server that goes on."""

import os
import random
import socket
from typing import Any

import grpc
import pytest

from delivery.grpc.hookstation_pb2 import (
    ReceiveRequest,
    Settlement,
    Subscription,
)
from tests.support.broker import Broker
from tests.support.streams import SERVICE, Client, Receiving, code_of, problem_of

pytestmark = pytest.mark.e2e
Code = grpc.StatusCode


def ended(stream: Receiving) -> tuple[grpc.StatusCode, str, str]:
    """How the broker ends a stream: status, the problem's code and field."""
    error = stream.error()
    problem = problem_of(error)
    return code_of(error), problem.code, problem.field


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (None, (Code.UNAUTHENTICATED, "not_authenticated")),
        ("hsk_made-up", (Code.UNAUTHENTICATED, "bad_key")),
        ("publish", (Code.PERMISSION_DENIED, "missing_scope")),
        ("elsewhere", (Code.PERMISSION_DENIED, "no_grant")),
    ],
)
def test_a_stream_needs_a_key_with_scope_and_grant(
    broker: Broker, channel: str, key: str | None, said: tuple[grpc.StatusCode, str]
) -> None:
    if key in {"publish", "elsewhere"}:
        broker.call("PUT", f"/producers/{key}", 201, json={})
        broker.call("PUT", f"/channels/{channel}-2", 201, json={})
        scope, granted = ("publish", channel) if key == "publish" else ("receive", f"{channel}-2")
        asked = {"channels": [granted], "scopes": [scope]}
        key = broker.call("POST", f"/producers/{key}/keys", 201, json=asked)["key"]
    with Client.of(broker, key) as client, client.receive(channel, credits=1) as stream:
        assert ended(stream)[:2] == said


@pytest.mark.parametrize("call", ["Publish", "PublishStream", "Receive"])
def test_every_call_needs_a_key(broker: Broker, call: str) -> None:
    with Client.of(broker, None) as client, pytest.raises(grpc.RpcError) as refused:
        client.raw(call, b"")
    assert code_of(refused.value) is Code.UNAUTHENTICATED


def test_unknown_and_push_consumers_are_refused_as_over_rest(
    broker: Broker, client: Client, channel: str
) -> None:
    path = f"/channels/{channel}/consumers"
    broker.call("PUT", f"{path}/push", 201, json={"url": "http://127.0.0.1:1/x"})
    for consumer, channel_, status in (
        ("none", channel, 404), ("push", channel, 409), ("all", "no-such-channel", 404),
    ):  # fmt: skip
        rest = broker.call("POST", f"/channels/{channel_}/consumers/{consumer}/receive", status)
        with client.receive(channel_, consumer, credits=1) as stream:
            error = stream.error()
        problem = problem_of(error)
        assert (problem.status, problem.code) == (rest["status"], rest["code"])
        assert problem.detail == rest["detail"]
        assert code_of(error) is (Code.NOT_FOUND if status == 404 else Code.FAILED_PRECONDITION)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"lease_s": 0.5}, "lease_s"),
        ({"lease_s": float("nan")}, "lease_s"),
        ({"lease_s": 1e9}, "lease_s"),
        ({"worker_id": "x" * 65}, "worker_id"),
        ({"worker_id": "a\nb"}, "worker_id"),
        ({"sticky": True}, "worker_id"),
        ({"resume": True}, "worker_id"),
    ],
)
def test_a_subscription_is_checked(
    client: Client, channel: str, options: dict[str, Any], field: str
) -> None:
    with client.receive(channel, credits=1, **options) as stream:
        assert ended(stream) == (Code.INVALID_ARGUMENT, "invalid_fields", field)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ReceiveRequest(subscription=Subscription(channel="x", consumer="y")), "subscription"),
        (ReceiveRequest(credits=10_001), "credits"),
        (ReceiveRequest(credits=2**32 - 1), "credits"),
        (ReceiveRequest(settlements=[Settlement(leases=["lse_x"])]), "action"),
        (ReceiveRequest.FromString(b"\x1a\x02\x10\x63"), "action"),  # an action 99
        (
            ReceiveRequest(
                settlements=[Settlement(action=Settlement.ACK, leases=map(str, range(1001)))]
            ),
            "leases",
        ),
        (
            ReceiveRequest(
                settlements=[Settlement(action=Settlement.ACK, leases=["x"], delay_s=1)]
            ),
            "delay_s",
        ),
        (
            ReceiveRequest(
                settlements=[Settlement(action=Settlement.EXTEND, leases=["x"], lease_s=-1)]
            ),
            "lease_s",
        ),
        (
            ReceiveRequest(
                settlements=[Settlement(action=Settlement.NACK, leases=["x"], error="x" * 301)]
            ),
            "error",
        ),
    ],
)
def test_a_request_of_a_stream_is_checked(
    client: Client, channel: str, request_: ReceiveRequest, field: str
) -> None:
    with client.receive(channel) as stream:
        stream._outgoing.put(request_)
        assert ended(stream) == (Code.INVALID_ARGUMENT, "invalid_fields", field)


def test_a_stream_begins_with_a_subscription(client: Client) -> None:
    for request in (ReceiveRequest(), ReceiveRequest(credits=5)):
        stream = Receiving(client, [request])
        assert ended(stream) == (Code.INVALID_ARGUMENT, "invalid_fields", "subscription")
        stream.cancel()


def test_a_stream_without_a_request_ends(client: Client) -> None:
    stream = Receiving(client, [])
    stream.close()
    assert ended(stream)[0] is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("call", ["Receive", "Publish", "PublishStream"])
def test_bytes_that_are_no_message_are_refused(client: Client, call: str) -> None:
    chance = random.Random(7)
    for size in (1, 3, 40, 1000):
        with pytest.raises(grpc.RpcError) as refused:
            client.raw(call, b"\xff" + chance.randbytes(size))
        assert code_of(refused.value) is Code.INVALID_ARGUMENT
        assert problem_of(refused.value).code == "malformed_body"


def test_a_request_above_the_limit_is_refused(client: Client, channel: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        client.publish(channel, bytes(6 * 1024 * 1024))
    assert code_of(refused.value) is Code.RESOURCE_EXHAUSTED


def test_an_unknown_call_is_refused(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        client.raw("Purge", b"")
    assert code_of(refused.value) is Code.UNIMPLEMENTED


def test_a_key_with_odd_bytes_is_refused(broker: Broker, client: Client) -> None:
    for value in ("Bearer", "Basic abc", "Bearer " + "x" * 4000, ""):
        made: Any = client.channel.unary_unary(f"{SERVICE}Publish")
        with pytest.raises(grpc.RpcError) as refused:
            made(b"", metadata=(("authorization", value),), timeout=60)
        assert code_of(refused.value) is Code.UNAUTHENTICATED


def test_connections_that_do_not_speak_http2_harm_nobody(
    broker: Broker, client: Client, channel: str
) -> None:
    host, port = broker.environment["HOOKSTATION_GRPC_ADDRESS"].split(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for content in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        os.urandom(5000),
        preface + os.urandom(5000),
        preface + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 2000,
        preface[:10],
    ):
        with socket.create_connection((host, int(port)), 10) as one:
            one.settimeout(1)
            try:
                one.sendall(content)
                one.recv(1000)
            except OSError:
                continue
    assert client.publish(channel).id


def test_streams_that_are_abandoned_leave_nothing(
    broker: Broker, client: Client, channel: str
) -> None:
    for number in range(60):
        with client.receive(channel, credits=number % 3):
            pass
    sent = client.publish(channel, b"last")
    with client.receive(channel, credits=1) as stream:
        (one,) = stream.messages(1)
        assert one.id == sent.id
        # A stream that the server has not seen end yet may have taken it, but only one.
        assert one.attempt <= 2
        stream.settle(Settlement.ACK, one.lease)
    assert "Traceback" not in broker.log()
