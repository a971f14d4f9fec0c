"""What every view of the API is made of: JSON whatever is asked for, small bodies, our errors."""

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

from channels_app import clock, origin
from channels_app.api import options
from channels_app.api.authentication import Caller, HasScope, KeyAuthentication, caller_of
from channels_app.api.concurrency import bodies
from channels_app.api.problems import RETRY_AFTER_S, ApiProblem
from channels_app.models import Versioned
from channels_app.rules import times

MAX_BYTES = 1024 * 1024
"""Of a request that is no message."""
TOO_MANY = "Too many request bodies arrive slowly at the same time; this one was not read."


NOW = "Hookstation-Now"


def now_text() -> str:
    """The broker's time as every answer tells it, so that callers may compare their clocks (S4-31).

    Raises what the database raises before it was asked for the first time.
    """
    return times.text(clock.now())


class Always(BaseContentNegotiation):
    """JSON, whatever the Accept header says: there is nothing else to choose."""

    # The stubs have iterables where the framework hands lists.
    def select_parser(self, request: Request, parsers: list[BaseParser]) -> BaseParser | None:  # type: ignore[override]
        return None

    def select_renderer(  # type: ignore[override]  # as above
        self, request: Request, renderers: list[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


class ApiView(APIView):
    """A view for keys. ``scopes`` names, for each method, the scopes of which one is needed."""

    scopes: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    authentication_classes = (KeyAuthentication,)
    permission_classes = (HasScope,)
    throttle_classes = ()
    parser_classes = ()
    renderer_classes = (JSONRenderer,)
    content_negotiation_class = Always
    http_method_names = ("get", "head", "post", "put", "patch", "delete")

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """As in REST framework, but forgotten with its body when answered.

        What parsers would need refers back to the request, and would keep both until a garbage
        collection.
        """
        made = Request(
            request,
            authenticators=self.get_authenticators(),
            negotiator=self.get_content_negotiator(),
        )
        made.parser_context = {}
        return made

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Who calls, and whether they may; there are no versions, formats or throttles here."""
        origin.current.set(origin.of("api", request.META))
        self.perform_authentication(request)
        self.check_permissions(request)
        self.check_options(request)

    def check_options(self, request: Request) -> None:
        """Raises Invalid for a parameter or a header of ours that the operation does not know."""
        method = "get" if request.method == "HEAD" else str(request.method).lower()
        options.check(getattr(self, method, None), request.META)

    def finalize_response(
        self, request: Request, response: Response, *args: Any, **kwargs: Any
    ) -> Response:
        """The answer as it goes out; from here on nothing holds the request."""
        # Django's alias of `get`: the view's reference to itself.
        self.__dict__.pop("head", None)
        with suppress(DatabaseFailure):  # away, and never there since this process began
            response[NOW] = now_text()
        return super().finalize_response(request, response, *args, **kwargs)

    @property
    def default_response_headers(self) -> dict[str, str]:
        """None: which methods there are is said where one was refused (problems.py)."""
        return {}

    @property
    def caller(self) -> Caller:
        """Whose key the request came with."""
        return caller_of(self.request)


class OpenView(ApiView):
    """A view that needs no key: who knows its address may call it."""

    scopes: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def get_authenticators(self) -> list[BaseAuthentication]:
        """None: the address is enough."""
        return []

    def get_permissions(self) -> list[BasePermission]:
        """None."""
        return []

    def check_options(self, request: Request) -> None:
        """None: an address is called by whatever a provider or a probe happens to be."""


class Sender(Protocol):
    """Who sends a body; nobody may take the places of all others (places.py)."""

    @property
    def owner(self) -> Hashable:
        """Whose it is."""


class AuthenticatedRequest(NamedTuple):
    """Who sends a body without a key, and knows the address of a row of ours."""

    owner: int


def json_object(
    request: Request, *, optional: bool = False, sender: Sender | None = None
) -> dict[str, Any]:
    """The request's body, a JSON object; nothing is one too where it is ``optional``.

    ``sender`` is the caller, unless the request came without a key.
    Raises ApiProblem: 415 for another content type, 400 for what is not JSON, and what `read_body`
    raises, above ``MAX_BYTES``.
    """
    read = request._request.read
    return read_object(sender or caller_of(request), request.META, read, optional=optional)


def read_object(
    sender: Sender, meta: Mapping[str, Any], read: Callable[[int], bytes], *, optional: bool = False
) -> dict[str, Any]:
    """The same from behind ``read``, with the request's headers in ``meta``."""
    body = read_body(sender, meta, read, MAX_BYTES)
    if optional and not body:
        return {}
    kind = meta.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if kind not in {"application/json", "application/merge-patch+json"}:
        raise ApiProblem(
            415, "unsupported_media_type", "Send application/json.", field="Content-Type"
        )
    value = parse_json(body)
    if not isinstance(value, dict):
        raise ApiProblem(400, "malformed_body", "The body must be a JSON object.")
    return value


def parse_json(body: bytes) -> Any:
    """JSON as the standard has it, without NaN. Raises ApiProblem (400)."""
    try:
        # Decoded here: left to itself the parser guesses UTF-16 and lets half characters through.
        return json.loads(body.decode("utf-8-sig"), parse_constant=_refuse)
    except RecursionError:
        detail = "The body is nested too deeply."
    except UnicodeDecodeError:
        detail = "The body is not UTF-8."
    except ValueError as error:
        detail = f"The body is not JSON: {error}."
    raise ApiProblem(400, "malformed_body", detail[:300])


def read_body(
    caller: Sender, meta: Mapping[str, Any], read: Callable[[int], bytes], most: int
) -> bytes:
    """The body's exact bytes, whose length was announced and is at most ``most``.

    Raises ApiProblem: 411 for a body without an announced length, since the server cannot tell us
    then whether the connection broke in the middle, and half a message must not be stored; 413
    from the announcement alone; 429, unread, for a caller who has too many slow ones on the way;
    400 for a body that ends early.
    """
    announced = meta.get("CONTENT_LENGTH") or ""
    if not announced:
        if _has_body(caller, meta):
            raise ApiProblem(
                411,
                "length_required",
                "Send the body with a Content-Length.",
                field="Content-Length",
            )
        return b""
    if not (announced.isascii() and announced.isdecimal()):
        raise ApiProblem(400, "malformed_header", "A number is needed.", field="Content-Length")
    if len(announced) > 15 or int(announced) > most:
        detail = f"The body is larger than {most} bytes."
        raise ApiProblem(413, "body_too_large", detail, field="Content-Length")
    size = int(announced)
    body = _await(caller, read, size) if size else b""
    if len(body) < size:
        raise ApiProblem(400, "broken_request", "The body ended before its Content-Length.")
    return body


def stamps(row: Versioned) -> dict[str, Any]:
    """What every resource says of itself."""
    return {
        "version": row.version,
        "created_at": times.text(row.created_at),
        "updated_at": times.text(row.updated_at),
    }


def _has_body(caller: Sender, meta: Mapping[str, Any]) -> bool:
    if "HTTP_TRANSFER_ENCODING" in meta:
        return True
    # HTTP/2 needs no length. Only a server that marks the end itself may be asked: elsewhere the
    # read would wait for the next request.
    return bool(meta.get("wsgi.input_terminated")) and bool(
        _await(caller, meta["wsgi.input"].read, 1)
    )


def _await(caller: Sender, read: Callable[[int], bytes], size: int) -> bytes:
    # The server waits for a body as long as its sender likes, in our thread.
    owner = caller.owner
    if not bodies.take(owner):
        raise ApiProblem(429, "too_many_bodies", TOO_MANY, retry_after_s=RETRY_AFTER_S)
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
