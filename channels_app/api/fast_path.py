"""Fast path of the most frequent requests, without REST framework's request handling."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from rest_framework.exceptions import NotAuthenticated

from channels_app.api import authentication, options
from channels_app.api.authentication import Caller

CONTENT_TYPE = "application/json"
DEFER_RESPONSE = "hookstation.answer_later"
"""Key of the WSGI environment: a `Defer`, where the server can answer when the call is over.

The server's own wants all headers; who frames answers puts one in its place that adds them."""
_compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Response(NamedTuple):
    """What is told of a request that was done."""

    status: int
    body: bytes
    """JSON."""
    headers: Sequence[tuple[str, str]] = ()
    """Those that other answers do not have."""


DeferResponse: TypeAlias = Callable[[Response, Callable[[], object]], bool]
"""Answers a postponed request, from any thread. Its second argument is called when the answer is
about to go out; False, without that, where the client is gone."""
Defer: TypeAlias = Callable[[], DeferResponse]
"""Postpones the answer: what the application returns then is not sent."""


def caller_of(
    meta: Mapping[str, Any],
    scopes: Sequence[str],
    channel: str | None = None,
    headers: Collection[str] = (),
) -> Caller:
    """Whoever the headers in ``meta`` name, who may do this with these ``Hookstation-*`` headers.

    Raises what the API's views raise.
    """
    caller = authentication.identify(meta.get("HTTP_AUTHORIZATION"))
    if caller is None:
        raise NotAuthenticated
    authentication.authorize(caller, scopes, channel)
    options.check_query(meta)
    options.check_headers(meta, headers)
    return caller


def to_json(value: Any) -> bytes:
    """As REST framework writes it: without the line ends that only some readers take for such."""
    text = _compact(value).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return text.encode()
