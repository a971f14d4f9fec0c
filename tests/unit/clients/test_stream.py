"""What the Python client sends over a stream, without a broker."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from hookstation_client.errors import (
    BadRequest,
    Conflict,
    ConnectionFailed,
    Forbidden,
    HookstationError,
    NotFound,
    RateLimited,
    Unauthorized,
    Unavailable,
)
from hookstation_client.grpc import stream
from hookstation_client.grpc.hookstation_pb2 import (
    Delivery,
    Problem,
    ReceiveRequest,
    ReceiveResponse,
    SettlementResult,
)
from hookstation_client.grpc.stream import Settle, Stream


class Failed(grpc.RpcError):
    """The error of a call."""

    def __init__(self, code: grpc.StatusCode, problem: bytes | None = None) -> None:
        self._code, self._problem = code, problem

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "no"

    def trailing_metadata(self) -> Any:
        return None if self._problem is None else ((stream.PROBLEM_KEY, self._problem),)


def test_settlements_that_differ_only_in_leases_are_joined() -> None:
    made = stream.merged(
        [
            Settle("ack", ("a",), {}),
            Settle("ack", ("b", "c"), {}),
            Settle("nack", ("d",), {"delay": 1}),
            Settle("nack", ("e",), {"delay": 2}),
            Settle("ack", ("f",), {}),
        ]
    )
    assert made == [
        Settle("ack", ("a", "b", "c"), {}),
        Settle("nack", ("d",), {"delay": 1}),
        Settle("nack", ("e",), {"delay": 2}),
        Settle("ack", ("f",), {}),
    ]


def test_a_settlement_has_at_most_as_many_leases_as_the_broker_takes() -> None:
    one = Settle("ack", tuple(str(number) for number in range(600)), {})
    assert [len(made.leases) for made in stream.merged([one, one, one])] == [600, 600, 600]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Unauthorized), (403, Forbidden), (404, NotFound), (409, Conflict),
        (422, BadRequest), (429, RateLimited), (503, Unavailable), (507, Unavailable),
    ],
)  # fmt: skip
def test_a_problem_is_the_error_of_rest(status: int, kind: type[HookstationError]) -> None:
    problem = Problem(status=status, code="why", detail="So.", field="f", retry_after_s=2)
    error = stream.error_of_call(Failed(grpc.StatusCode.UNKNOWN, problem.SerializeToString()))
    assert type(error) is kind
    assert (error.status, error.code, error.detail) == (status, "why", "So.")
    assert (error.retry_after, list(error.fields)) == (2, ["f"])


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, ConnectionFailed),
        (grpc.StatusCode.UNIMPLEMENTED, ConnectionFailed),
        (grpc.StatusCode.INTERNAL, ConnectionFailed),
        (grpc.StatusCode.UNAUTHENTICATED, Unauthorized),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, RateLimited),
    ],
)
def test_a_failure_without_a_problem_passes_unless_it_is_a_refusal(
    code: grpc.StatusCode, kind: type[HookstationError]
) -> None:
    assert type(stream.error_of_call(Failed(code))) is kind
    assert type(stream.error_of_call(Failed(code, b"\xff\xff"))) is kind


def test_a_delivery_becomes_the_fields_of_a_received_message() -> None:
    found = Delivery(
        id="msg_1", delivery_id="dlv_1", lease="lse_1", attempt=2, max_attempts=10,
        event_type="order.created", priority=4, ordering_key="k", replay=True,
        content_type="text/plain", headers={"Shop": "berlin"}, body=b"x",
    )  # fmt: skip
    found.lease_expires_at.FromSeconds(60)
    found.accepted_at.FromMilliseconds(1500)
    fields = stream.received_fields(found)
    assert fields["lease_expires_at"] == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    assert fields["accepted_at"] == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert (fields["attempt"], fields["is_replay"], fields["body"]) == (2, True, b"x")
    assert fields["headers"] == {"Shop": "berlin"}
    assert stream.received_fields(Delivery(id="msg_1"))["lease_expires_at"] is None


@pytest.mark.parametrize(
    "url", ["127.0.0.1:9090", "http://127.0.0.1:9090", "grpc://", "grpc://a/b", "grpcs:a:1"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not grpc:"):
        stream.open_channel(url)


@pytest.mark.parametrize("url", ["grpc://127.0.0.1:9090", "grpcs://hooks.example.com:9090/"])
def test_an_address_is_taken(url: str) -> None:
    stream.open_channel(url).close()


class Wire:
    """A channel whose test sends the requests and the responses."""

    def __init__(self) -> None:
        self.requests: Iterator[ReceiveRequest] = iter(())
        self.responses: list[ReceiveResponse] = []

    def stream_stream(self, method: str, **serializers: Any) -> Callable[..., Any]:
        def call(requests: Iterator[ReceiveRequest], metadata: Any) -> Iterator[ReceiveResponse]:
            self.requests = requests
            return iter(self.responses)

        return call


def test_a_settlement_is_unsettled_until_it_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while it is taken from the queue: a stream that is closed then loses the result."""
    wire: Any = Wire()
    worker = Stream(wire, "hsk_key", {"channel": "c", "consumer": "all"}, 1)
    next(wire.requests)
    assert not worker.unsettled
    seen: list[bool] = []
    joined = stream.merged

    def look_and_merge(settles: list[Settle]) -> list[Settle]:
        seen.append(worker.unsettled)
        return joined(settles)

    monkeypatch.setattr(stream, "merged", look_and_merge)
    worker.settle("ack", "a")
    worker.settle("ack", "b", "c")
    (sent,) = next(wire.requests).settlements
    assert (seen, list(sent.leases)) == ([True], ["a", "b", "c"])
    assert worker.unsettled
    wire.responses.append(ReceiveResponse(results=[SettlementResult(id=sent.id)]))
    assert list(worker.responses()) == [[]]
    assert not worker.unsettled
    assert worker.unconfirmed() == []
