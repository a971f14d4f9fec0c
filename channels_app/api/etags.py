"""ETags: a resource's version in its answers, and the version that a write was meant for."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.conf import conf
from channels_app.errors import Invalid
from channels_app.rules import preconditions
from channels_app.rules.preconditions import Precondition
from channels_app.rules.write_result import WriteResult


def precondition_of(request: Request) -> Precondition:
    """What If-Match and If-None-Match ask of a write. Raises Invalid for what is no tag."""
    try:
        return preconditions.parse(
            request.META.get("HTTP_IF_MATCH"), request.META.get("HTTP_IF_NONE_MATCH")
        )
    except ValueError as error:
        header = str(error).partition(" ")[0]
        raise Invalid("invalid_header", str(error), field=header) from None


def tagged(body: Any, version: int, *, status: int = 200, location: str = "") -> Response:
    """An answer with the resource's ETag."""
    headers = {"ETag": preconditions.tag(version)}
    if location:
        headers["Location"] = location
    return Response(body, status=status, headers=headers)


def registered(done: WriteResult[Any], body: Any, place: str = "") -> Response:
    """The answer to a write: 201 with its Location (below /api/v1/) for what is new, else 200."""
    if not done.created:
        return tagged(body, done.row.version)
    url = f"{conf().public_url}/api/v1/{place}"
    return tagged(body, done.row.version, status=201, location=url)


def fresh(request: Request, body: Any, version: int, state: str = "") -> Response:
    """The answer to a read: 304 without a body where the caller has this version already.

    ``state`` is what else the body depends on; a write may be conditional on that tag, too.
    """
    known = request.META.get("HTTP_IF_NONE_MATCH", "")
    tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
    headers = {"ETag": preconditions.tag(version, state)}
    if headers["ETag"] in tags or known.strip() == "*":
        return Response(status=304, headers=headers)
    return Response(body, headers=headers)
