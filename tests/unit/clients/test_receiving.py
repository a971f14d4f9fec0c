"""The responses of `Hooks` to the broker, in each web framework."""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import django.test
import flask
import httpx
import pydantic
import pytest
from django.test import override_settings
from fastapi import FastAPI
from hookstation_client import Reject, Retry
from hookstation_client.receiving import Event, Hooks, MemoryStore, once
from starlette.applications import Starlette

from tests.support.signed import headers_of

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@dataclass
class Order:
    id: int


class Invoice(pydantic.BaseModel):
    number: str


class Urls:
    """The URL configuration of the Django application under test."""

    def __init__(self, hooks: Hooks) -> None:
        self.urlpatterns = hooks.django_urls("hooks")


Answer = tuple[int, Mapping[str, str], bytes]
Post = Callable[..., Answer]


def request_of(body: bytes = b"{}", **said: str) -> dict[str, str]:
    """Return the headers of a delivery; ``said`` changes what is signed, or a header."""
    signed = {name: said.pop(name) for name in ("event_type", "id") if name in said}
    more = {name.replace("_", "-"): value for name, value in said.items()}
    return headers_of(body, SECRET, **signed) | more


def asgi(app: Any, body: bytes, headers: dict[str, str]) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await client.post("/hooks", content=body, headers=headers)

    return asyncio.run(send())


def in_fastapi(hooks: Hooks, body: bytes, headers: dict[str, str]) -> Answer:
    app = FastAPI()
    app.include_router(hooks.fastapi_router("/hooks"))
    found = asgi(app, body, headers)
    return found.status_code, found.headers, found.content


def in_starlette(hooks: Hooks, body: bytes, headers: dict[str, str]) -> Answer:
    found = asgi(Starlette(routes=hooks.starlette_routes("/hooks")), body, headers)
    return found.status_code, found.headers, found.content


def in_flask(hooks: Hooks, body: bytes, headers: dict[str, str]) -> Answer:
    app = flask.Flask("shop")
    app.register_blueprint(hooks.flask_blueprint("/hooks"))
    found = app.test_client().post("/hooks", data=body, headers=headers)
    return found.status_code, dict(found.headers), found.data


def in_django(hooks: Hooks, body: bytes, headers: dict[str, str]) -> Answer:
    with override_settings(ROOT_URLCONF=Urls(hooks)):
        client = django.test.Client(enforce_csrf_checks=True)
        found = client.post("/hooks", body, content_type="application/json", headers=headers)
    return found.status_code, found.headers, found.content


@pytest.fixture(params=[in_fastapi, in_starlette, in_flask, in_django])
def post(request: pytest.FixtureRequest, hooks: Hooks) -> Post:
    """Post to an application of each framework; return the response's status, headers and body."""

    def send(body: bytes = b"{}", **said: str) -> Answer:
        answer: Answer = request.param(hooks, body, request_of(body, **said))
        return answer

    return send


@pytest.fixture
def hooks() -> Hooks:
    return Hooks(SECRET)


def test_a_delivery_is_passed_to_its_handler(hooks: Hooks, post: Post) -> None:
    found: list[Any] = []

    @hooks.on("invoice.*")
    def invoice(body: Invoice) -> None:
        found.append(body)

    @hooks.on("order.created", "order.changed")
    def order(body: Order, event: Event) -> None:
        found.extend([body, event])

    assert post(b'{"id": 7}')[0] == 204
    assert post(b'{"number": "A-1"}', event_type="invoice.paid", id="msg_2")[0] == 204
    body, event, invoice_body = found
    assert (body, invoice_body) == (Order(7), Invoice(number="A-1"))
    assert (event.id, event.event_type, event.attempt) == ("msg_1", "order.created", 2)
    assert (event.channel, event.consumer, event.body) == ("orders", "shop", b'{"id": 7}')


def test_coroutine_handler_is_awaited(hooks: Hooks, post: Post) -> None:
    found = []

    @hooks.on("*")
    async def handle(body: bytes) -> None:
        await asyncio.sleep(0)
        found.append(body)

    assert post(b"\xff")[0] == 204
    assert found == [b"\xff"]


def test_forged_delivery_is_refused(hooks: Hooks, post: Post) -> None:
    hooks.on("*")(lambda body: pytest.fail("handled"))

    status, _, body = post(webhook_signature="v1,AAAA")

    assert (status, json.loads(body)) == (401, {"detail": "No signature matches."})


def test_a_handler_can_request_a_retry(hooks: Hooks, post: Post) -> None:
    @hooks.on("*")
    def handle(body: dict[str, float]) -> None:
        raise Retry(after=body["after"], pause=body["after"] > 60)

    status, headers, _ = post(b'{"after": 29.5}')
    paused, _, _ = post(b'{"after": 61}')

    assert (status, headers["Retry-After"], paused) == (409, "30", 503)


def test_a_handler_can_reject(hooks: Hooks, post: Post) -> None:
    @hooks.on("*")
    def handle(body: Order) -> None:
        raise Reject("no such customer")

    rejected = post(b'{"id": 1}')
    unreadable = post(b'{"id": "one"}')

    for status, headers, _ in (rejected, unreadable):
        assert (status, headers["Hookstation-Retry"]) == (422, "never")
    assert json.loads(rejected[2]) == {"detail": "no such customer"}
    assert b"'one' is not of type int" in unreadable[2]


def test_failure_is_an_error_without_its_details(hooks: Hooks, post: Post) -> None:
    @hooks.on("*")
    def handle(body: Any) -> None:
        raise RuntimeError("password of the database")

    status, headers, body = post()

    assert (status, json.loads(body)) == (500, {"detail": "RuntimeError"})
    assert "Hookstation-Retry" not in headers


def test_repeat_is_acknowledged_and_not_handled(post: Post, hooks: Hooks) -> None:
    calls = []

    @hooks.on("order.*")
    @once(MemoryStore())
    def handle(body: Any) -> None:
        calls.append(body)
        if len(calls) == 1:
            raise Retry(after=1)

    answers = [post(b"1")[0], post(b"1")[0], post(b"1")[0], post(b"2", id="msg_2")[0]]

    assert answers == [409, 204, 204, 204]
    assert calls == [1, 1, 2]


def test_an_event_without_a_handler_is_rejected(hooks: Hooks, post: Post) -> None:
    @hooks.on("order.*", "invoice")
    def handle(body: Any) -> None: ...

    kinds = ["order.a.b", "invoice", "order", "invoices", "invoice.paid"]

    assert [post(event_type=kind)[0] for kind in kinds] == [204, 204, 422, 422, 422]


def test_too_large_body_is_not_read() -> None:
    hooks = Hooks(SECRET, max_body_bytes=10)
    hooks.on("*")(lambda body: pytest.fail("read"))

    status, headers, _ = in_flask(hooks, b"x" * 11, request_of())

    assert (status, headers["Hookstation-Retry"]) == (413, "never")
    assert hooks.refuse({}) is not None


def test_sample_of_the_broker_needs_no_handler() -> None:
    calls: list[Any] = []
    quiet, eager = Hooks(SECRET), Hooks(SECRET, handle_tests=True)
    for hooks in (quiet, eager):
        hooks.on("*")(lambda body: calls.append(body))

    answers = [h.handle(request_of(Hookstation_Test="true"), b"{}") for h in (quiet, eager)]

    assert [answer.status for answer in answers] == [204, 204]
    assert calls == [{}]


def test_the_store_applies_to_every_handler() -> None:
    hooks, calls = Hooks(SECRET, store=MemoryStore()), []

    @hooks.on("order.*")
    async def order(body: Any) -> None:
        calls.append("order")

    @hooks.on("*")
    def rest(body: Any) -> None:
        calls.append("rest")

    for kind in ("order.created", "order.created", "other", "other"):
        assert hooks.handle(request_of(event_type=kind), b"{}").status == 204

    assert calls == ["order", "rest"]


def test_a_blocking_handler_does_not_block_the_event_loop() -> None:
    hooks, threads = Hooks(SECRET), []
    hooks.on("*")(lambda body: threads.append(threading.current_thread()))

    answer = asyncio.run(hooks.handle_async(request_of(), b"{}"))

    assert answer.status == 204
    assert threads != [threading.main_thread()]


def test_a_secret_function_is_called_per_request(monkeypatch: pytest.MonkeyPatch) -> None:
    rotating = Hooks(lambda: ["whsec_AAAA", SECRET])
    rotating.on("*")(lambda body: None)
    fixed = Hooks()
    fixed.on("*")(lambda body: None)

    assert rotating.handle(request_of(), b"{}").status == 204
    assert fixed.handle(request_of(), b"{}").status == 500
    monkeypatch.setenv("HOOKSTATION_SECRET", SECRET)
    assert fixed.handle(request_of(), b"{}").status == 204


def test_a_handler_with_an_unsupported_type_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="complex"):

        @Hooks(SECRET).on("*")
        def handle(body: complex) -> None: ...
