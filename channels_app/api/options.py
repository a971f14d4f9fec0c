"""Reject headers and query parameters that an operation does not know.

If a misspelt ``Hookstation-Prioritiy: 9`` were ignored, the message would silently get the wrong
priority.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qsl

from channels_app.core.errors import Invalid

OURS = "HTTP_HOOKSTATION_"
FORWARDED = "HTTP_HOOKSTATION_HEADER_"
"""Prefix of the producer's own headers, which are forwarded (publication.py)."""
DELIVERED = frozenset(
    f"Hookstation-{name}"
    for name in (
        *("Channel", "Consumer", "Attempt", "Max-Attempts", "Accepted-At"),
        *("Ack-Url", "Replay", "Test"),
    )
)
"""Headers of deliveries, which are ignored: a broker may deliver to another broker's channel."""
MAX_LENGTH = 100
"""Characters of an unknown name that the error repeats."""


def declare(handler: Callable[..., Any], query: Iterable[str], headers: Iterable[str]) -> None:
    """Record the options of an operation; openapi.operation calls this with its parameters."""
    handler.query_options = frozenset(query)  # type: ignore[attr-defined]  # a note of ours
    ours = (name for name in headers if name.startswith("Hookstation-"))
    handler.header_options = frozenset(ours)  # type: ignore[attr-defined]  # as above


def check(handler: Callable[..., Any] | None, meta: Mapping[str, Any]) -> None:
    """Raise Invalid for an option that the operation does not know, if it declares its options."""
    allowed = getattr(handler, "query_options", None)
    if allowed is not None:
        check_query(meta, allowed)
        check_headers(meta, getattr(handler, "header_options", ()))


def check_query(meta: Mapping[str, Any], allowed: Collection[str] = ()) -> None:
    """Raise Invalid for the first parameter that is not ``allowed``."""
    text = meta.get("QUERY_STRING", "")
    if not text:
        return
    for name, _ in parse_qsl(text, keep_blank_values=True, max_num_fields=None):
        if name not in allowed:
            raise _unknown("invalid_parameter", "parameter", name, allowed)


def check_headers(meta: Mapping[str, Any], allowed: Collection[str] = ()) -> None:
    """Raise Invalid for the first ``Hookstation-*`` header that is not ``allowed``.

    Headers to be forwarded are allowed if ``allowed`` is not empty, as for publishing.
    """
    for key in [key for key in meta if key.startswith(OURS)]:
        if not (allowed and key.startswith(FORWARDED)):
            name = key.removeprefix("HTTP_").replace("_", "-").title()
            if name not in allowed and not (allowed and name in DELIVERED):
                raise _unknown("invalid_header", "header", name, allowed)


def _unknown(code: str, noun: str, name: str, allowed: Collection[str]) -> Invalid:
    close = get_close_matches(name, allowed, n=1)
    if close:
        remedy = f"did you mean {close[0]}?"
    elif allowed:
        remedy = f"choose from {', '.join(sorted(allowed))}."
    else:
        remedy = "leave it out."
    return Invalid(code, f"There is no such {noun}; {remedy}", field=name[:MAX_LENGTH])
