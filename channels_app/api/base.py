"""Define the base of the API's views: JSON only, bodies of limited size, RFC 9457 errors."""

import json
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, Protocol

from django.db import Error as DatabaseFailure
from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.permissions import BasePermission
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from channels_app import origin
from channels_app.api import etags, options
from channels_app.api.authentication import Caller, HasScope, KeyAuthentication, caller_of
from channels_app.core import times
from channels_app.core.errors import (
    BrokerError,
    LengthRequired,
    Malformed,
    RateLimited,
    TooLarge,
    UnsupportedMediaType,
)
from channels_app.database import clock
from channels_app.ingest.concurrency import bodies
from channels_app.registry.resource import WriteResult
from channels_app.serializers.base import ResourceSerializer

MAX_BYTES = 1024 * 1024
"""Maximum size of a request other than publishing."""
TOO_MANY = "Too many request bodies arrive slowly at the same time; this one was not read."


NOW = "Hookstation-Now"


def now_text() -> str:
    """The broker's time as a header of every response, for comparison of clocks (S4-31).

    Raises what the database raises if this process has not reached it yet.
    """
    return times.text(clock.now())


class Always(BaseContentNegotiation):
    """Always use JSON, whatever the Accept header says."""

    # The stubs declare iterables where the framework passes lists.
    def select_parser(self, request: Request, parsers: list[BaseParser]) -> BaseParser | None:  # type: ignore[override]
        return None

    def select_renderer(  # type: ignore[override]  # as above
        self, request: Request, renderers: list[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


class ApiView(APIView):
    """A view for callers with a key. ``scopes`` maps a method to scopes, one of which is needed."""

    scopes: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    authentication_classes = (KeyAuthentication,)
    permission_classes = (HasScope,)
    throttle_classes = ()
    parser_classes = ()
    renderer_classes = (JSONRenderer,)
    content_negotiation_class = Always
    http_method_names = ("get", "head", "post", "put", "patch", "delete")

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """As in REST framework, but without a reference cycle.

        The parsers' context refers to the request, which would keep the request and its body in
        memory until a garbage collection.
        """
        made = Request(
            request,
            authenticators=self.get_authenticators(),
            negotiator=self.get_content_negotiator(),
        )
        made.parser_context = {}
        return made

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate and authorize; there are no versions, formats or throttles here."""
        origin.current.set(origin.of("api", request.META))
        self.perform_authentication(request)
        self.check_permissions(request)
        self.check_options(request)

    def check_options(self, request: Request) -> None:
        """Raise Invalid for an unknown query parameter or ``Hookstation-*`` header."""
        method = "get" if request.method == "HEAD" else str(request.method).lower()
        options.check(getattr(self, method, None), request.META)

    def finalize_response(
        self, request: Request, response: Response, *args: Any, **kwargs: Any
    ) -> Response:
        """Add the time, and drop the last reference from the view to itself."""
        # Django's alias of `get`, a bound method of the view.
        self.__dict__.pop("head", None)
        with suppress(DatabaseFailure):  # unavailable since this process started
            response[NOW] = now_text()
        return super().finalize_response(request, response, *args, **kwargs)

    @property
    def default_response_headers(self) -> dict[str, str]:
        """Empty: problems.py sets Allow on responses with status 405."""
        return {}

    @property
    def caller(self) -> Caller:
        """The caller whose key the request has."""
        return caller_of(self.request)


class ResourceView(ApiView):
    """A configured row, which its serializer shows."""

    serializer: ClassVar[type[ResourceSerializer]]

    def shown(self, done: WriteResult[Any]) -> Any:
        """The row, after a service wrote it."""
        return self.serializer(done.row).data

    def written(
        self, write: Callable[..., WriteResult[Any]], *arguments: Any, **options: Any
    ) -> Response:
        """Let a service write as the caller, on the request's condition; respond with the row."""
        condition = etags.precondition_of(self.request)
        done = write(*arguments, actor=self.caller.actor, condition=condition, **options)
        return etags.registered(self.request, done, self.shown(done))


class OpenView(ApiView):
    """A view without a key: knowing its address is sufficient."""

    scopes: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def get_authenticators(self) -> list[BaseAuthentication]:
        """None: the address is sufficient."""
        return []

    def get_permissions(self) -> list[BasePermission]:
        """None."""
        return []

    def check_options(self, request: Request) -> None:
        """Accept all options: providers and probes send their own."""


class Sender(Protocol):
    """The sender of a body, for the limit on concurrent bodies (concurrency.py)."""

    @property
    def owner(self) -> Hashable:
        """Key under which the limit counts the sender."""


class AuthenticatedRequest(NamedTuple):
    """A sender without a key, who knows the address of a row."""

    owner: int


def json_object(
    request: Request, *, optional: bool = False, sender: Sender | None = None
) -> dict[str, Any]:
    """The request's body, a JSON object; an empty body gives {} if ``optional``.

    ``sender`` is the caller, unless the request came without a key.
    Raises BrokerError: 415 for another content type, 400 for invalid JSON, and what `read_body`
    raises with the limit ``MAX_BYTES``.
    """
    read = request._request.read
    return read_object(sender or caller_of(request), request.META, read, optional=optional)


def read_object(
    sender: Sender, meta: Mapping[str, Any], read: Callable[[int], bytes], *, optional: bool = False
) -> dict[str, Any]:
    """As `json_object`, for a function ``read`` and the WSGI environment ``meta``."""
    body = read_body(sender, meta, read, MAX_BYTES, check=whole_json)
    if optional and not body:
        return {}
    kind = meta.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if kind not in {"application/json", "application/merge-patch+json"}:
        raise UnsupportedMediaType(
            "unsupported_media_type", "Send application/json.", field="Content-Type"
        )
    value = parse_json(body)
    if not isinstance(value, dict):
        raise Malformed("malformed_body", "The body must be a JSON object.")
    return value


def parse_json(body: bytes) -> Any:
    """Parse standard JSON, without NaN. Raises BrokerError (400)."""
    try:
        # Decode here: the parser would guess UTF-16, and accept unpaired surrogates.
        return json.loads(body.decode("utf-8-sig"), parse_constant=_refuse)
    except RecursionError:
        detail = "The body is nested too deeply."
    except UnicodeDecodeError:
        detail = "The body is not UTF-8."
    except ValueError as error:
        detail = f"The body is not JSON: {error}."
    raise Malformed("malformed_body", detail[:300])


def whole_json(body: bytes) -> None:
    """Raise BrokerError (400) unless the body is one complete JSON object or array.

    No proper beginning of one is complete, apart from white space.
    """
    if not isinstance(parse_json(body), dict | list):
        raise Malformed("malformed_body", "The body must be a JSON object or array.")


def read_body(
    caller: Sender,
    meta: Mapping[str, Any],
    read: Callable[[int], bytes],
    most: int,
    *,
    check: Callable[[bytes], object] | None = None,
) -> bytes:
    """The exact bytes of the body, at most ``most``.

    ``check`` raises for an incomplete body. Only with it may a body come without a Content-Length:
    the server reports a broken connection or a malformed chunk as the end of such a body, and a
    partial message must not be stored.
    Raises BrokerError: 411 without ``check`` and Content-Length; 413 from the Content-Length alone,
    or once more was read; 429, without reading, for a caller with too many slow bodies in flight;
    400 for a body that ends early; what ``check`` raises.
    """
    announced = meta.get("CONTENT_LENGTH") or ""
    if not announced:
        return _read_unannounced(caller, meta, most, check)
    if not (announced.isascii() and announced.isdecimal()):
        raise Malformed("malformed_header", "A number is needed.", field="Content-Length")
    if len(announced) > 15 or int(announced) > most:
        raise _too_large(most)
    size = int(announced)
    body = _await(caller, read, size) if size else b""
    if len(body) < size:
        raise Malformed("broken_request", "The body ended before its Content-Length.")
    return body


def _read_unannounced(
    caller: Sender,
    meta: Mapping[str, Any],
    most: int,
    check: Callable[[bytes], object] | None,
) -> bytes:
    """The body of a request with chunks, or of HTTP/2, which needs no length."""
    is_chunked = "HTTP_TRANSFER_ENCODING" in meta
    body = b""
    # Read only if the server marks the end of the body; otherwise the read would wait for the next
    # request. Not by Django's stream, which ends at the Content-Length.
    if meta.get("wsgi.input_terminated") and (check or not is_chunked):
        body = _await(caller, meta["wsgi.input"].read, most + 1 if check else 1)
    elif is_chunked:
        check = None
    if not body and not is_chunked:
        return b""
    if check is None:
        detail = "Send the body with a Content-Length, or as a JSON object or array."
        raise LengthRequired("length_required", detail, field="Content-Length")
    if len(body) > most:
        raise _too_large(most)
    check(body)
    return body


def _too_large(most: int) -> BrokerError:
    detail = f"The body is larger than {most} bytes."
    return TooLarge("body_too_large", detail, field="Content-Length")


def _await(caller: Sender, read: Callable[[int], bytes], size: int) -> bytes:
    # The server waits as long as the sender is slow, in this thread.
    owner = caller.owner
    if not bodies.take(owner):
        raise RateLimited("too_many_bodies", TOO_MANY)
    try:
        return _read(read, size)
    finally:
        bodies.give_back(owner)


def _read(read: Callable[[int], bytes], size: int) -> bytes:
    body = read(size)
    if len(body) == size:
        return body
    parts = bytearray(body)
    while len(parts) < size and (more := read(size - len(parts))):
        parts += more
    return bytes(parts)


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not a number")
