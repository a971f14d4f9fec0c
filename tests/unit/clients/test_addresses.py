"""Several addresses of one broker: which one gets a request when another is unavailable."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hookstation_client import AsyncHookstation, ConnectionFailed, Hookstation, Unavailable
from hookstation_client.addresses import Addresses, addresses_of
from hookstation_client.calls import Call, Tries

from tests.support import ports
from tests.support.receiver import Receiver, Reply
from tests.unit.clients.test_calls import STORED

PATH = "/api/v1/channels/orders/messages"
PROBLEM = b'{"code": "storage_unavailable", "detail": "Away."}'
Publish = Callable[..., str]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def other() -> Iterator[Receiver]:
    with Receiver() as consumer:
        yield consumer


@pytest.fixture(params=["blocking", "asyncio"])
def publish(request: pytest.FixtureRequest) -> Publish:
    """Publish ``count`` messages with one client; return the id of the last one."""

    def blocking(urls: Any, count: int = 1, **options: Any) -> str:
        with Hookstation(urls, key="hsk_x", timeout=120, **options) as client:
            return [client.publish("orders", {"n": n}).id for n in range(count)][-1]

    async def awaiting(urls: Any, count: int = 1, **options: Any) -> str:
        async with AsyncHookstation(urls, key="hsk_x", timeout=120, **options) as client:
            return [(await client.publish("orders", {"n": n})).id for n in range(count)][-1]

    if request.param == "blocking":
        return blocking
    return lambda *given, **options: asyncio.run(awaiting(*given, **options))


def base(receiver: Receiver) -> str:
    return receiver.url("/").rstrip("/")


@pytest.mark.parametrize(
    "away",
    [
        *(Reply(reset=True), Reply(502), Reply(503), Reply(504)),
        Reply(503, PROBLEM, (("Retry-After", "60"),)),
    ],
    ids=["reset", "502", "503", "504", "busy-for-a-minute"],
)
def test_next_address_gets_the_same_request_without_a_wait(
    away: Reply, receiver: Receiver, other: Receiver, publish: Publish
) -> None:
    receiver.script(PATH, [away])
    other.script(PATH, [Reply(202, STORED)])

    assert publish([base(receiver), base(other)], count=3, retries=0) == "msg_1"

    (failed,) = receiver.requests(PATH)
    # The second and the third message go to the address that works.
    assert len(other.requests(PATH)) == 3
    assert failed.header("idempotency-key") == other.requests(PATH)[0].header("idempotency-key")
    assert failed.body == other.requests(PATH)[0].body


def test_refused_connection_and_silence_lead_to_the_next_address() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host == "silent":
            raise httpx.ReadTimeout("No answer.", request=request)
        return httpx.Response(202, content=STORED)

    urls = f"http://127.0.0.1:{ports.claim()}, http://silent/,http://other"
    mounts = {
        "http://127.0.0.1": httpx.HTTPTransport(),
        "all://": httpx.MockTransport(answer),
    }
    with (
        httpx.Client(mounts=mounts, trust_env=False) as http,
        Hookstation(urls, key="hsk_x", http=http, retries=0) as client,
    ):
        assert client.publish("orders", {}).id == "msg_1"
    assert asked == ["silent", "other"]


def test_a_call_continues_when_its_host_name_loses_records() -> None:
    found = Addresses(["http://a.example"])
    found.add_records("http://a.example", [("", "", 0, "", (host, 80)) for host in ("::1", "::2")])
    tries = Tries(Call("GET", "/x", lambda response: None), found, retries=1)
    for _ in range(2):
        tries.address()
        assert tries.wait_after(ConnectionFailed("x", code="not_sent")) is not None
    tries.address()
    tries.wait_after(ConnectionFailed("x", code="not_sent"))
    found.add_records("http://a.example", [("", "", 0, "", ("::1", 80))])

    assert tries.address().url == "http://a.example"


def test_each_round_tries_each_address_once(
    receiver: Receiver, other: Receiver, publish: Publish
) -> None:
    for one in (receiver, other):
        one.script(PATH, [Reply(503)])

    with pytest.raises(Unavailable):
        publish([base(receiver), base(other)], retries=2)

    assert [len(one.requests(PATH)) for one in (receiver, other)] == [3, 3]


def test_a_sent_call_that_is_not_idempotent_is_not_retried(
    receiver: Receiver, other: Receiver
) -> None:
    receiver.script("/api/v1/replays", [Reply(reset=True)])
    other.script("/api/v1/replays", [Reply(202, b'{"id": "rpl_1"}')])
    away = f"http://127.0.0.1:{ports.claim()}"

    with (
        Hookstation([base(receiver), base(other)], key="hsk_x") as client,
        pytest.raises(ConnectionFailed),
    ):
        client.replay("orders")
    assert other.requests() == []
    with Hookstation([away, base(other)], key="hsk_x", retries=0) as client:
        assert client.replay("orders")["id"] == "rpl_1"


def test_address_that_failed_is_avoided_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Addresses(["http://a", "http://b", "http://c"])
    a, b, c = (found.choose(), *(address[0] for address in list(found._addresses.values())[1:]))
    assert a is not None

    found.avoid(a)
    assert found.choose() is b
    found.avoid(b)
    assert found.choose() is c
    assert found.choose(tried=[c]) is a
    assert found.choose(tried=[a, b, c]) is None
    monkeypatch.setattr(
        "hookstation_client.addresses.time.monotonic", lambda: c.avoided_until + 1e9
    )
    assert found.choose() is a  # the last chosen address is kept


def test_records_of_a_name_are_several_addresses(
    publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name goes into the ``Host`` header; the client connects to each record's address."""
    port = ports.claim()
    asked: list[str] = []
    real = socket.getaddrinfo

    def records(host: str | bytes | None, *rest: Any, **said: Any) -> Any:
        if host != "broker.test":
            return real(host, *rest, **said)
        asked.append(host)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))
            for ip in ("127.0.0.2", "127.0.0.3")
        ]

    monkeypatch.setattr(socket, "getaddrinfo", records)
    with (
        Receiver(host="127.0.0.2", port=port) as first,
        Receiver(host="127.0.0.3", port=port) as second,
    ):
        first.script(PATH, [Reply(503, close=True)])
        second.script(PATH, [Reply(202, STORED, close=True)])
        assert publish(f"http://broker.test:{port}", count=2, retries=0) == "msg_1"

    assert asked == ["broker.test"]
    assert (len(first.requests()), len(second.requests())) == (1, 2)
    for request in first.requests() + second.requests():
        assert request.header("host") == f"broker.test:{port}"


def test_addresses_are_a_list_or_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    both = ["http://a:8000", "http://b:8000"]
    monkeypatch.setenv("HOOKSTATION_URL", "http://a:8000/, http://b:8000")

    assert addresses_of(None) == addresses_of(both) == addresses_of("http://a:8000,http://b:8000")
    with Hookstation(key="hsk_x") as client, Hookstation(client.url, key="hsk_x") as copy:
        assert client._addresses.urls == copy._addresses.urls == tuple(both)
