"""Handle the most frequent requests without REST framework's request handling."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from channels_app.access.principal import Principal
from channels_app.api import options
from channels_app.registry import authentication

CONTENT_TYPE = "application/json"
DEFER_RESPONSE = "hookstation.answer_later"
"""Key of the WSGI environment: a `Defer`, if the server supports deferred responses.

The server's own function needs all headers; broker_site replaces it by one that adds them."""
_compact = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Response(NamedTuple):
    """The result of a request."""

    status: int
    body: bytes
    """JSON."""
    headers: Sequence[tuple[str, str]] = ()
    """Headers that are specific to this response."""


DeferResponse: TypeAlias = Callable[[Response, Callable[[], object]], bool]
"""Sends a deferred response, from any thread. It calls its second argument before the response is
sent; if the client has disconnected, it returns False without the call."""
Defer: TypeAlias = Callable[[], DeferResponse]
"""Defers the response: the return value of the application is not sent."""


def principal_of(
    meta: Mapping[str, Any],
    scopes: Sequence[str],
    channel: str | None = None,
    headers: Collection[str] = (),
) -> Principal:
    """Authenticate and authorize a request, and check its options.

    ``headers`` are the known ``Hookstation-*`` headers. Raises what the API's views raise.
    """
    principal = authentication.authenticate(meta, scopes, channel)
    options.check_query(meta)
    options.check_headers(meta, headers)
    return principal


def to_json(value: Any) -> bytes:
    """As REST framework does: escape U+2028 and U+2029, which JavaScript took for line ends."""
    text = _compact(value).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return text.encode()
