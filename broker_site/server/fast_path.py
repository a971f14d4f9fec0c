"""Serve programs' requests without the middleware that only people's pages need."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any

from django.core.handlers.exception import convert_exception_to_response
from django.core.handlers.wsgi import WSGIRequest
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.urls import ResolverMatch, get_resolver
from django.utils.log import log_response

from broker_site.server import security
from broker_site.server.lingering import lingering
from channels_app.access.principal import Principal
from channels_app.api import fast_path
from channels_app.api.base import NOW, now_text
from channels_app.api.fast_path import Response
from channels_app.api.views import publish
from channels_app.api.views.publish import RefusalView
from channels_app.ingest.concurrency import bodies, short_turns
from delivery.api import pull

StartResponse = Callable[..., Any]
_NAME = "([A-Za-z0-9._-]{1,100})"
"""Name of a channel or a consumer, unless it is percent-encoded."""
SHORT: tuple[tuple[Callable[[str], re.Match[str] | None], Callable[..., Response]], ...] = (
    (re.compile(f"/api/v1/channels/{_NAME}/messages").fullmatch, publish.answer),
    (
        re.compile(f"/api/v1/channels/{_NAME}/consumers/{_NAME}/receive").fullmatch,
        pull.answer_receipt,
    ),
    (re.compile("/api/v1/leases/ack").fullmatch, pull.answer_acknowledgement),
)
"""The most frequent POST requests, with the functions that handle them. The groups of a pattern
become arguments."""
DONE = {status: f"{status} {HTTPStatus(status).phrase}" for status in (200, 202)}
DONE_HEADERS = security.complete([("Content-Type", fast_path.CONTENT_TYPE)], "/api/v1/")
"""Headers that all these responses have."""
MAX_PATHS = 4096
"""Maximum number of URLs whose views are cached."""
MAX_DROPPED = 64 * 1024
"""Maximum size of a rejected body that is read to keep the connection open, in bytes."""


class FastPathRequest(WSGIRequest):
    """A request whose body is only read as bytes, without form fields or their charset."""

    _read_started: bool
    """An attribute of Django that the stubs lack."""

    def _set_content_type_params(self, meta: dict[str, Any]) -> None:
        self.content_type, self.content_params = "", {}


class FastPathHandler:
    """A WSGI application that calls Django's views without middleware.

    Sessions, CSRF, messages, static files, request metrics, cookies and request signals cost 0.2 to
    0.3 ms of CPU each, more than the shortest request takes without them, and programs do not need
    them. The most frequent requests (publish one message, receive, acknowledge) also skip Django's
    request and REST framework's view; if one is rejected there, RefusalView formats the error.
    """

    PREFIXES = ("/api/v1/", "/acks/", "/inbound/", "/livez", "/readyz", "/metrics")

    @classmethod
    def is_meant(cls, environ: dict[str, Any]) -> bool:
        """Whether a program sends the request."""
        path: str = environ["PATH_INFO"]
        return path.startswith(cls.PREFIXES)

    def __init__(self) -> None:
        self._answer: Any = convert_exception_to_response(_answer)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> list[bytes]:
        """Handle one request; the response has one part."""
        if "HTTP_TRANSFER_ENCODING" in environ:
            environ["wsgi.input"] = _ChunkedBody(environ["wsgi.input"])
        if environ["REQUEST_METHOD"] == "POST":
            for matches, answer in SHORT:
                if match := matches(environ["PATH_INFO"]):
                    if (defer := environ.get(fast_path.DEFER_RESPONSE)) is not None:
                        environ[fast_path.DEFER_RESPONSE] = partial(_defer, defer)
                    return _give_short(environ, start_response, answer, match.groups())
        with short_turns:  # a batch of messages, or another long request
            return _give(self._answer, FastPathRequest(environ), start_response)


class _ChunkedBody:
    """A body without Content-Length, which knows whether it was read to its end."""

    __slots__ = ("_stream", "is_ended", "readline")

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.readline = stream.readline  # Django refers to it
        self.is_ended = False

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end."""
        data: bytes = self._stream.read(size)
        self.is_ended = len(data) < size
        return data


class _Body:
    """A request's body, which knows whether reading it has begun."""

    __slots__ = ("_read", "is_begun")

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self.is_begun = False

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes. Raises UnreadablePostError."""
        self.is_begun = True
        try:
            return self._read(size)
        except OSError as error:
            raise UnreadablePostError(*error.args) from error


def _give_short(
    environ: dict[str, Any],
    start_response: StartResponse,
    answer: Callable[..., Response],
    named: Sequence[str],
) -> list[bytes]:
    """Call a function of `SHORT` with the URL's groups; let a view format its error."""
    body = _Body(environ["wsgi.input"].read)
    try:
        done = answer(environ, body.read, *named)
    except Exception as error:  # of any kind: the view formats it, or responds with 500
        request = FastPathRequest(environ)
        request._read_started = body.is_begun
        try:
            return _give(_refusing(error), request, start_response)
        finally:
            # The traceback's frames refer to the body, and one to the view, which refers to the
            # error.
            error.__traceback__ = None
    _keep_usable(connections[DEFAULT_DB_ALIAS])
    start_response(DONE[done.status], _headers_of(done))
    return [done.body]


def _defer(defer: fast_path.Defer) -> fast_path.DeferResponse:
    """Wrap the deferral so that a response gets the common headers of the REST API."""
    answer_later = defer()

    def answer(done: Response, confirm: Callable[[], object]) -> bool:
        return answer_later(done._replace(headers=_headers_of(done)), confirm)

    return answer


def _headers_of(done: Response) -> list[tuple[str, str]]:
    """All headers of a response. Raises what the database raises."""
    own = (NOW, now_text()), ("Content-Length", str(len(done.body)))
    return [*done.headers, *own, *DONE_HEADERS]


def _give(
    view: Callable[[FastPathRequest], HttpResponse],
    request: FastPathRequest,
    start_response: StartResponse,
) -> list[bytes]:
    """Send the response of a view to the server."""
    response = view(request)
    if response.status_code >= 400:
        log_response(
            *("%s: %s", response.reason_phrase, request.path), response=response, request=request
        )
    headers = security.complete(list(response.items()), request.path_info)
    content = response.content
    if not any(name == "Content-Length" for name, _ in headers):
        headers.append(("Content-Length", str(len(content))))
    if _leaves_body(request):
        headers.append(("Connection", "close"))
        lingering.keep(request.META)
    _keep_connections_usable()
    start_response(f"{response.status_code} {response.reason_phrase}", headers)
    return [content]


def _answer(request: HttpRequest) -> HttpResponse:
    match = _resolve(request.path_info)
    request.resolver_match = match
    return _rendered(match.func(request, *match.args, **match.kwargs))


def _refusing(error: Exception) -> Any:
    """A view that responds with this error."""

    def refuse(request: HttpRequest) -> HttpResponse:
        return _rendered(RefusalView.as_view(error=error)(request))

    return convert_exception_to_response(refuse)


def _rendered(response: Any) -> HttpResponse:
    # REST framework renders its responses late.
    if hasattr(response, "render"):
        response.render()
        # The context and the response refer to each other, and to the request: a reference cycle.
        response.renderer_context = {}
    return response  # type: ignore[no-any-return]  # views may return anything


def _leaves_body(request: FastPathRequest) -> bool:
    """Whether an unread body remains between this request and the next one.

    The server closes such a connection, and a client that is not told loses its next request.
    Only for granian: WSGI reserves the header for servers.
    """
    meta = request.META
    if request._read_started or meta.get("SERVER_SOFTWARE") != "Granian":
        return False
    if not meta["SERVER_PROTOCOL"].startswith("HTTP/1"):
        return False
    announced = meta.get("CONTENT_LENGTH") or "0"
    if announced == "0":
        return "HTTP_TRANSFER_ENCODING" in meta and not meta["wsgi.input"].is_ended
    if not (announced.isdecimal() and int(announced) <= MAX_DROPPED):
        return True
    # Waiting for a body occupies a thread: only callers with a key may do that.
    principal: Principal | None = getattr(request, "user", None)
    if principal is None or not bodies.take(principal.owner, waits=False):
        return True
    try:
        request.read()
    except UnreadablePostError:
        return True
    finally:
        bodies.give_back(principal.owner)
    return False


@lru_cache(MAX_PATHS)
def _resolve(path: str) -> ResolverMatch:
    return get_resolver().resolve(path)


def _keep_connections_usable() -> None:
    """Close connections that are old or broken, as Django does after each request."""
    for connection in connections.all(initialized_only=True):
        _keep_usable(connection)


def _keep_usable(connection: BaseDatabaseWrapper) -> None:
    if not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
