"""Set ETags on responses, and read the version that a write is conditional on."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.conf import conf
from channels_app.core import http
from channels_app.core.errors import Invalid
from channels_app.core.http import Precondition
from channels_app.registry.resource import WriteResult


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
    known = request.META.get("HTTP_IF_NONE_MATCH", "")
    tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
    headers = {"ETag": http.tag(version, state)}
    if headers["ETag"] in tags or known.strip() == "*":
        return Response(status=304, headers=headers)
    return Response(body, headers=headers)
