"""Which failures the client retries, after what delay, and what its errors say."""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from hookstation_client import (
    AsyncBuffer,
    AsyncDelivery,
    AsyncHookstation,
    AsyncWorker,
    BadRequest,
    Buffer,
    Conflict,
    ConnectionFailed,
    Delivery,
    Hookstation,
    NotFound,
    RateLimited,
    Unavailable,
    Worker,
)
from hookstation_client.calls import MAX_BACKOFF_S, Call, instant, wait_before_retry
from hookstation_client.client import AsyncSchedules, Schedules
from hookstation_client.errors import error_of, seconds_of

from tests.support.receiver import Receiver, Reply

PROBLEM = b'{"code": "rate_limited", "detail": "Too fast."}'
STORED = b'{"id":"msg_1","duplicate":false,"matched_consumers":0,"due_at":null,"url":""}'
FIELDS = {
    **dict.fromkeys(("delivery_id", "attempt", "max_attempts", "event_type", "priority")),
    **dict.fromkeys(("ordering_key", "replay", "accepted_at", "content_type", "headers")),
}
MESSAGE = FIELDS | {"id": "msg_1", "lease": "a", "body": "x"}
"""A received message, as the broker sends it."""


def call(is_repeatable: bool = True) -> Call[None]:
    return Call("POST", "/x", lambda response: None, is_repeatable=is_repeatable)


@pytest.mark.parametrize(
    ("status", "problem", "repeatable", "always"),
    [
        *((status, b"", False, False) for status in (400, 404, 409)),
        *((status, b"", True, False) for status in (429, 500, 502, 503, 507)),
        *((status, PROBLEM, True, True) for status in (429, 503, 507)),
    ],
)
def test_only_idempotent_calls_are_retried_after_ambiguous_failures(
    status: int, problem: bytes, repeatable: bool, always: bool
) -> None:
    """Proxies send no error code, so their 429, 503 and 507 may concern a forwarded request.

    A refusal of the broker had no effect.
    """
    error = error_of(status, {}, problem)

    assert (wait_before_retry(call(), error, 0, 6) is not None) is repeatable
    assert (wait_before_retry(call(is_repeatable=False), error, 0, 6) is not None) is always


def test_waits_double_and_honour_retry_after() -> None:
    waits = [wait_before_retry(call(), error_of(503, {}, b""), n, 100) or 0 for n in range(12)]
    asked = error_of(429, {"Retry-After": "7"}, PROBLEM)
    too_long = error_of(429, {"Retry-After": "3600"}, PROBLEM)

    assert all(0.1 * 2**n <= wait <= 0.2 * 2**n for n, wait in enumerate(waits[:6]))
    assert max(waits) <= MAX_BACKOFF_S
    assert 7 <= (wait_before_retry(call(), asked, 0, 6) or 0) <= 7.2
    assert wait_before_retry(call(), too_long, 0, 6) is None
    assert wait_before_retry(call(), asked, 6, 6) is None


def test_error_is_read_from_a_problem_and_from_a_proxy() -> None:
    problem = error_of(
        422,
        {},
        b'{"code": "invalid_fields", "detail": "Two.", "errors": ['
        b'{"field": "a", "detail": "A."}, {"field": "b", "detail": "B."}]}',
    )
    proxy = error_of(502, {}, b"<html>Bad Gateway</html>")

    assert isinstance(problem, BadRequest)
    assert (problem.code, problem.fields) == ("invalid_fields", {"a": "A.", "b": "B."})
    assert str(problem) == "invalid_fields: Two."
    assert str(error_of(422, {}, b'{"field": "a", "detail": "A."}')) == "a: A."
    assert isinstance(proxy, Unavailable)
    assert (proxy.code, proxy.detail) == ("", "HTTP status 502")
    assert isinstance(error_of(412, {}, b""), Conflict)


def test_retry_after_is_a_number_or_a_date() -> None:
    assert seconds_of("1.5") == 1.5
    assert seconds_of("Thu, 01 Jan 1970 00:00:00 GMT") == 0
    assert (seconds_of("Thu, 01 Jan 2970 00:00:00 GMT") or 0) > 1e9
    assert seconds_of("soon") is None
    assert seconds_of(None) is None


def test_instant_needs_a_time_zone() -> None:
    assert instant(datetime(2026, 1, 2, 3, tzinfo=UTC)) == "2026-01-02T03:00:00+00:00"
    with pytest.raises(ValueError, match="time zone"):
        instant(datetime(2026, 1, 2, 3))  # the value that is refused


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Hookstation, AsyncHookstation),
        (Schedules, AsyncSchedules),
        (Delivery, AsyncDelivery),
        (Buffer, AsyncBuffer),
        (Worker, AsyncWorker),
    ],
)
def test_both_clients_have_the_same_names_and_parameters(one: type, other: type) -> None:
    assert public(one).keys() == public(other).keys()
    for name, method in public(one).items():
        if callable(method) and name != "buffer":
            mine = inspect.signature(method).parameters
            theirs = inspect.signature(public(other)[name]).parameters
            assert list(mine) == list(theirs), name
            assert method.__doc__, name


@pytest.fixture
def clients(receiver: Receiver) -> Iterator[Hookstation]:
    # A proxy from the environment is not meant for the broker.
    with httpx.Client(trust_env=False) as http:
        yield Hookstation(receiver.url("/"), key="hsk_x", http=http, timeout=120)


def test_refused_requests_are_repeated_with_the_same_key(
    receiver: Receiver, clients: Hookstation
) -> None:
    path = "/api/v1/channels/orders/messages"
    busy = Reply(429, PROBLEM, (("Retry-After", "0"),))
    receiver.script(path, [busy, Reply(503), Reply(reset=True), Reply(202, STORED)])

    message = clients.publish("orders", {"a": 1})

    requests = receiver.requests(path)
    assert message.id == "msg_1"
    assert len(requests) == 4
    keys = {request.header("idempotency-key") for request in requests}
    assert len(keys) == 1
    assert None not in keys
    assert {request.body for request in requests} == {b'{"a":1}'}


def test_lasting_errors_are_raised(receiver: Receiver, clients: Hookstation) -> None:
    clients.retries = 1
    receiver.script("/api/v1/channels", [Reply(429, PROBLEM, (("Retry-After", "0"),))])
    receiver.script("/api/v1/replays", [Reply(reset=True)])

    with pytest.raises(RateLimited) as limited:
        list(clients.channels())
    with pytest.raises(ConnectionFailed):
        clients.replay("orders")

    assert (limited.value.code, limited.value.retry_after) == ("rate_limited", 0)
    assert len(receiver.requests("/api/v1/channels")) == 2
    assert len(receiver.requests("/api/v1/replays")) == 1


def receive_blocking(url: str) -> None:
    with Hookstation(url, key="hsk_x") as client:
        client.receive_batch("c", "all")


def receive_awaiting(url: str) -> None:
    async def receive() -> None:
        async with AsyncHookstation(url, key="hsk_x") as client:
            await client.receive_batch("c", "all")

    asyncio.run(receive())


@pytest.mark.parametrize("receive", [receive_blocking, receive_awaiting])
def test_a_batch_with_an_unfetchable_body_is_released(
    receiver: Receiver, receive: Callable[[str], None]
) -> None:
    large = FIELDS | {"id": "msg_2", "lease": "b", "body_url": "/api/v1/messages/msg_2/body"}
    receiver.script(
        "/api/v1/channels/c/consumers/all/receive",
        [Reply(200, json.dumps({"messages": [MESSAGE, large]}).encode())],
    )
    receiver.script("/api/v1/messages/msg_2/body", [Reply(404)])
    receiver.script("/api/v1/leases/release", [Reply(200, b'{"done": [], "failed": []}')])
    with pytest.raises(NotFound):
        receive(receiver.url("/"))

    (released,) = receiver.requests("/api/v1/leases/release")
    assert json.loads(released.body) == {"leases": ["a", "b"]}


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOOKSTATION_URL", raising=False)
    with pytest.raises(ValueError, match="HOOKSTATION_URL"):
        Hookstation()
    monkeypatch.setenv("HOOKSTATION_URL", "http://broker:8000/")
    with pytest.raises(ValueError, match="HOOKSTATION_KEY"):
        Hookstation()
    monkeypatch.setenv("HOOKSTATION_KEY", "hsk_y")

    with Hookstation() as client:
        assert (client.url, client.key) == ("http://broker:8000", "hsk_y")
