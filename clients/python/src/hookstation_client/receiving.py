"""Receive webhooks in a web application: FastAPI, Starlette, Flask, Django.

    hooks = Hooks(secret="whsec_...", store=SQLiteStore("handled.db"))

    @hooks.on("order.*")
    def order(body: Order) -> None: ...

    app.include_router(hooks.fastapi_router("/hooks"))

`Hooks` verifies each request (signature, age), deduplicates it, and calls the first handler whose
pattern matches. When the handler returns, the message counts as delivered. If the handler raises
`Retry`, the broker sends the message again later; after `Reject`, never; after any other exception,
as the consumer's retry policy says.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
import os
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from hookstation_client.bodies import parser_for
from hookstation_client.calls import parse_instant
from hookstation_client.deduplication import (
    CacheStore,
    MemoryStore,
    ModelStore,
    SQLiteStore,
    Store,
    current,
    once,
)
from hookstation_client.errors import Reject, Retry, SignatureError
from hookstation_client.signing import TOLERANCE_S, Secrets, verify

__all__ = [
    "CacheStore",
    "Event",
    "Hooks",
    "MemoryStore",
    "ModelStore",
    "Reject",
    "Response",
    "Retry",
    "SQLiteStore",
    "Store",
    "once",
]

logger = logging.getLogger("hookstation_client.receiving")

F = TypeVar("F", bound=Callable[..., Any])

MAX_BODY_BYTES = 16 * 1024 * 1024
NEVER = {"Hookstation-Retry": "never"}
"""Tells the broker not to retry (docs/api.md, "What your answer means")."""


@dataclass(frozen=True)
class Event:
    """A delivered message. docs/api.md describes its fields."""

    id: str
    """The id of the message, the same in every attempt and replay."""
    event_type: str
    channel: str
    consumer: str
    attempt: int
    max_attempts: int
    priority: int
    ordering_key: str
    accepted_at: datetime | None
    is_replay: bool
    is_test: bool
    ack_url: str
    """The URL for a later acknowledgement; empty unless the consumer has ``ack`` on."""
    content_type: str
    headers: Mapping[str, str] = field(repr=False)
    """All headers of the request, with lower-case names."""
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """Parse the body as JSON."""
        return json.loads(self.body)

    @classmethod
    def of(cls, headers: Mapping[str, str], body: bytes) -> Event:
        """Create an event from a verified request."""
        return cls(
            id=headers["webhook-id"],
            event_type=headers.get("hookstation-event-type", ""),
            channel=headers.get("hookstation-channel", ""),
            consumer=headers.get("hookstation-consumer", ""),
            attempt=int(headers.get("hookstation-attempt", 1)),
            max_attempts=int(headers.get("hookstation-max-attempts", 1)),
            priority=int(headers.get("hookstation-priority", 4)),
            ordering_key=headers.get("hookstation-ordering-key", ""),
            accepted_at=parse_instant(headers.get("hookstation-accepted-at")),
            is_replay=headers.get("hookstation-replay") == "true",
            is_test=headers.get("hookstation-test") == "true",
            ack_url=headers.get("hookstation-ack-url", ""),
            content_type=headers.get("content-type", ""),
            headers=headers,
            body=body,
        )


class Response(NamedTuple):
    """A response to the broker."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def empty(cls) -> Response:
        """Return a response that acknowledges the message."""
        return cls(204, {}, b"")

    @classmethod
    def problem(
        cls, status: int, detail: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Return a response that refuses it; the console shows ``detail`` with the attempt."""
        said = {"Content-Type": "application/json", **(headers or {})}
        return cls(status, said, json.dumps({"detail": detail}).encode())


class _Handler(NamedTuple):
    patterns: tuple[str, ...]
    function: Callable[..., Any]
    arguments: Callable[[Event], list[Any]]
    is_coroutine: bool


class Hooks:
    """The webhook handlers of one application, and its routes for web frameworks.

    ``secret`` is the consumer's signing secret, several secrets during a rotation, or a function
    that returns them; the default is ``HOOKSTATION_SECRET``. ``store`` stores which messages were
    handled, so that a repeat is acknowledged but not handled again, as if each handler were
    decorated with `once`. ``tolerance`` is the largest difference of a timestamp, in seconds. Test
    samples of the broker are acknowledged without calling a handler, unless ``handle_tests`` is
    true.
    """

    def __init__(
        self,
        secret: Secrets | Callable[[], Secrets] | None = None,
        *,
        store: Store | None = None,
        tolerance: int = TOLERANCE_S,
        max_body_bytes: int = MAX_BODY_BYTES,
        handle_tests: bool = False,
    ) -> None:
        self._secret = secret
        self._store = store
        self._tolerance = tolerance
        self._max_body_bytes = max_body_bytes
        self._handle_tests = handle_tests
        self._handlers: list[_Handler] = []

    def on(self, *patterns: str) -> Callable[[F], F]:
        """Register a handler for event types: a name, a pattern such as ``order.*``, or ``*``.

        The annotation of each parameter selects its argument: `Event` the whole delivery; a
        pydantic model, a dataclass, ``str``, ``bytes``, ``dict``, ``list`` or no annotation the
        body. A body that does not fit the type is rejected. The handler may be a coroutine
        function. The first registered handler that matches is called. If none matches, the message
        is rejected; register ``*`` to accept all others.
        """

        def register(function: F) -> F:
            handle = function if self._store is None else once(self._store)(function)
            self._handlers.append(
                _Handler(
                    patterns or ("*",),
                    handle,
                    _arguments_of(function),
                    inspect.iscoroutinefunction(function),
                )
            )
            return function

        return register

    # -- Handle a request ------------------------------------------------------------------------

    def handle(self, headers: Mapping[str, str], body: bytes) -> Response:
        """Handle a request and return the response, in blocking frameworks."""
        try:
            event, handler = self._find(headers, body)
            if handler is not None:
                token = current.set(event.id)
                try:
                    arguments = handler.arguments(event)
                    result = handler.function(*arguments)
                    if handler.is_coroutine:
                        asyncio.run(result)
                finally:
                    current.reset(token)
        except Exception as error:
            return _response_to(error)
        return Response.empty()

    async def handle_async(self, headers: Mapping[str, str], body: bytes) -> Response:
        """Like `handle`, for asyncio. Handlers that are not coroutine functions run in a thread."""
        try:
            event, handler = self._find(headers, body)
            if handler is not None:
                token = current.set(event.id)
                try:
                    arguments = handler.arguments(event)
                    if handler.is_coroutine:
                        await handler.function(*arguments)
                    else:
                        await asyncio.to_thread(handler.function, *arguments)
                finally:
                    current.reset(token)
        except Exception as error:
            return _response_to(error)
        return Response.empty()

    def refuse(self, headers: Mapping[str, str]) -> Response | None:
        """Return an error response before the body is read, or None if it may be read.

        Refuses requests without ``Content-Length``, which the broker always sends, and bodies that
        are too large.
        """
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            return Response.problem(411, "Content-Length is required.")
        if int(length) > self._max_body_bytes:
            return Response.problem(
                413, f"The body is larger than {self._max_body_bytes} bytes.", NEVER
            )
        return None

    def _find(self, headers: Mapping[str, str], body: bytes) -> tuple[Event, _Handler | None]:
        found = {name.lower(): value for name, value in headers.items()}
        verify(self._secrets(), found, body, tolerance=self._tolerance)
        event = Event.of(found, body)
        if event.is_test and not self._handle_tests:
            return event, None
        for handler in self._handlers:
            if any(_matches(pattern, event.event_type) for pattern in handler.patterns):
                return event, handler
        raise Reject(f"No handler for the event type {event.event_type!r}.")

    def _secrets(self) -> Secrets:
        secret = self._secret() if callable(self._secret) else self._secret
        secret = secret or os.environ.get("HOOKSTATION_SECRET")
        if not secret:
            raise RuntimeError("Pass the signing secret, or set HOOKSTATION_SECRET.")
        return secret

    # -- Web frameworks --------------------------------------------------------------------------

    def starlette_routes(self, path: str = "/hooks") -> list[Any]:
        """Return routes for ``Starlette(routes=[...])``."""
        from starlette.requests import Request
        from starlette.responses import Response as StarletteResponse
        from starlette.routing import Route

        async def receive(request: Request) -> StarletteResponse:
            response = self.refuse(request.headers)
            if response is None:
                response = await self.handle_async(request.headers, await request.body())
            return StarletteResponse(response.body, response.status, response.headers)

        return [Route(path, receive, methods=["POST"], name="hookstation")]

    def fastapi_router(self, path: str = "/hooks") -> Any:
        """Return a router for ``app.include_router(...)``."""
        from fastapi import APIRouter

        return APIRouter(routes=self.starlette_routes(path))

    def flask_blueprint(self, path: str = "/hooks", name: str = "hookstation") -> Any:
        """Return a blueprint for ``app.register_blueprint(...)``. Exempt it from CSRF checks."""
        from flask import Blueprint, request
        from flask import Response as FlaskResponse

        blueprint = Blueprint(name, __name__)

        def receive() -> FlaskResponse:
            headers = {name.lower(): value for name, value in request.headers.items()}
            response = self.refuse(headers) or self.handle(headers, request.get_data())
            return FlaskResponse(response.body, response.status, response.headers)

        blueprint.add_url_rule(path, "receive", receive, methods=["POST"])
        return blueprint

    def django_urls(self, path: str = "hooks", name: str = "hookstation") -> list[Any]:
        """Return URL patterns for ``urlpatterns``. The signature replaces the CSRF check."""
        from django.http import HttpRequest, HttpResponse
        from django.urls import path as django_path
        from django.views.decorators.csrf import csrf_exempt
        from django.views.decorators.http import require_POST

        @csrf_exempt
        @require_POST
        def receive(request: HttpRequest) -> HttpResponse:
            headers = {name.lower(): value for name, value in request.headers.items()}
            response = self.refuse(headers) or self.handle(headers, request.body)
            return HttpResponse(response.body, status=response.status, headers=response.headers)

        return [django_path(path.lstrip("/"), receive, name=name)]


def _matches(pattern: str, event_type: str) -> bool:
    """Return whether a pattern matches an event type, by the broker's rule."""
    if pattern.endswith(".*"):
        return event_type.startswith(pattern[:-1])
    return pattern == "*" or pattern == event_type != ""


def _arguments_of(function: Callable[..., Any]) -> Callable[[Event], list[Any]]:
    """Return a function that makes the arguments of a handler from an event."""
    hints = typing.get_type_hints(function)
    makers: list[Callable[[Event], Any]] = []
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints.get(parameter.name, Any)
        if annotation is Event:
            makers.append(lambda event: event)
        else:
            makers.append(_body_maker(parser_for(annotation)))

    return lambda event: [make(event) for make in makers]


def _body_maker(parse: Callable[[bytes], Any]) -> Callable[[Event], Any]:
    def make(event: Event) -> Any:
        try:
            return parse(event.body)
        except ValueError as error:
            raise Reject(f"The body is invalid: {error}") from error

    return make


def _response_to(error: Exception) -> Response:
    """Return the response to an error, so that the broker retries or rejects accordingly."""
    if isinstance(error, SignatureError):
        logger.warning("request refused: %s", error)
        return Response.problem(401, str(error))
    if isinstance(error, Reject):
        logger.warning("message rejected: %s", error)
        return Response.problem(422, str(error), NEVER)
    if isinstance(error, Retry):
        # After a 503 the broker pauses the whole consumer, after a 409 only this delivery.
        wait = {"Retry-After": str(math.ceil(error.after))}
        return Response.problem(503 if error.pause else 409, str(error), wait)
    logger.error("handler failed", exc_info=error)
    return Response.problem(500, type(error).__name__)
