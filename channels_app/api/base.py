"""Define the base of the API's views: JSON only, bodies of limited size, RFC 9457 errors."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

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
from channels_app.access.principal import Principal
from channels_app.api import options
from channels_app.api.authentication import HasScope, KeyAuthentication, principal_of
from channels_app.conf import conf
from channels_app.core import http, times
from channels_app.core.errors import Invalid, Malformed, UnsupportedMediaType
from channels_app.core.http import Precondition
from channels_app.database import clock
from channels_app.ingest.body import Sender, parse_json, read_body, whole_json
from channels_app.registry.resource import WriteResult
from channels_app.serializers.base import ResourceSerializer

MAX_BYTES = 1024 * 1024
"""Maximum size of a request other than publishing."""
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
        rest_request = Request(
            request,
            authenticators=self.get_authenticators(),
            negotiator=self.get_content_negotiator(),
        )
        rest_request.parser_context = {}
        return rest_request

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
    def principal(self) -> Principal:
        """The caller whose key the request has."""
        return principal_of(self.request)


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
        condition = precondition_of(self.request)
        done = write(*arguments, principal=self.principal, condition=condition, **options)
        return registered(self.request, done, self.shown(done))


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


def json_object(
    request: Request, *, optional: bool = False, sender: Sender | None = None
) -> dict[str, Any]:
    """The request's body, a JSON object; an empty body gives {} if ``optional``.

    ``sender`` is the caller, unless the request came without a key.
    Raises BrokerError: 415 for another content type, 400 for invalid JSON, and what `read_body`
    raises with the limit ``MAX_BYTES``.
    """
    read = request._request.read
    return read_object(sender or principal_of(request), request.META, read, optional=optional)


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


def precondition_of(request: Request) -> Precondition:
    """The precondition of If-Match and If-None-Match. Raises Invalid for a malformed header."""
    try:
        return http.parse(request.META.get("HTTP_IF_MATCH"), request.META.get("HTTP_IF_NONE_MATCH"))
    except ValueError as error:
        header = str(error).partition(" ")[0]
        raise Invalid("invalid_header", str(error), field=header) from None


def tagged(body: Any, version: int, *, status: int = 200, location: str = "") -> Response:
    """A response with the resource's ETag."""
    headers = {"ETag": http.tag(version)}
    if location:
        headers["Location"] = location
    return Response(body, status=status, headers=headers)


def registered(request: Request, done: WriteResult[Any], body: Any) -> Response:
    """The response to a write: 201 with the request's address for a new object, else 200."""
    if not done.created:
        return tagged(body, done.row.version)
    url = f"{conf().public_url}{request.path_info}"
    return tagged(body, done.row.version, status=201, location=url)


def fresh(request: Request, body: Any, version: int, state: str = "") -> Response:
    """The response to a read: 304 without a body if the caller has this version already.

    ``state`` is anything else the body depends on; a write with this tag compares the version only.
    """
    if_none_match = request.META.get("HTTP_IF_NONE_MATCH", "")
    tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    headers = {"ETag": http.tag(version, state)}
    if headers["ETag"] in tags or if_none_match.strip() == "*":
        return Response(status=304, headers=headers)
    return Response(body, headers=headers)
