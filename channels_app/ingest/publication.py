"""Parse what a producer sends, strictly: the headers of one request, or the items of a batch."""

import re
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from channels_app.conf import MAX_IDEMPOTENCY_KEY, MAX_ORDERING_KEY, conf
from channels_app.core import http, ids, json_schema, names, sequence, times
from channels_app.core.errors import (
    BrokerError,
    Invalid,
    NotFound,
    RateLimited,
    TooLarge,
    UnsupportedMediaType,
)
from channels_app.core.json_schema import Checker
from channels_app.core.values import whole_number
from channels_app.ingest import limits
from channels_app.ingest.accept import Accepted, Publication
from channels_app.models import Producer
from channels_app.registry.cache import ChannelConfig, config_cache

DEFAULT_PRIORITY = 4
MAX_CONTENT_TYPE_LENGTH = 255
FORWARDED = {
    "HTTP_TRACEPARENT": "traceparent",
    "HTTP_TRACESTATE": "tracestate",
    "HTTP_BAGGAGE": "baggage",
}
PREFIX = "HTTP_HOOKSTATION_HEADER_"
_EMPTY = "is empty or not ASCII. A batch's item may have other characters in its headers."
_PRINTABLE = re.compile(r"[\x20-\x7e]+")
_WORD = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_QUOTED = r'"[\x20\x21\x23-\x5b\x5d-\x7e]*"'
_CONTENT_TYPE = re.compile(
    rf"({_WORD}/{_WORD})(?:[ \t]*;(?:[ \t]*{_WORD}=(?:{_WORD}|{_QUOTED}))?)*[ \t]*"
)
_HEADER_OF = {
    "content_type": "Content-Type",
    "idempotency_key": "Idempotency-Key",
    "event_type": "Hookstation-Event-Type",
    "priority": "Hookstation-Priority",
    "deliver_at": "Hookstation-Deliver-At",
    "delay_ms": "Hookstation-Delay",
    "spread_ms": "Hookstation-Spread",
    "expires_at": "Hookstation-Expires-At",
    "ordering_key": "Hookstation-Ordering-Key",
    "producer_seq": "Hookstation-Producer-Seq",
}
"""Options of a message, and the headers of single messages that carry them."""
_META = {
    name: f"HTTP_{header.upper().replace('-', '_')}".replace("HTTP_CONTENT_TYPE", "CONTENT_TYPE")
    for name, header in _HEADER_OF.items()
}
HEADERS = frozenset(name for name in _HEADER_OF.values() if name.startswith("Hookstation-"))
ITEM_FIELDS = ("body", "body_base64", *_HEADER_OF, "headers")
TIME_OPTIONS = frozenset({"deliver_at", "delay_ms", "spread_ms", "expires_at"})
_KNOWN = ", ".join(ITEM_FIELDS)
_checkers: dict[tuple[str, str], tuple[Any, Checker]] = {}
SCOPES = ("publish",)
CONFLICT = "The key was already used for a message with another body; nothing was stored."


class _Times(NamedTuple):
    """When a message is to be sent."""

    due_at: datetime | None
    delay_ms: int | None
    spread_ms: int
    expires_at: datetime | None


AT_ONCE = _Times(None, None, 0, None)


def from_headers(
    meta: Mapping[str, Any], channel: ChannelConfig, producer: Producer | None, now: datetime
) -> Publication:
    """Parse a publication, still without its body. Raises BrokerError that names the header."""
    encoding = meta.get("HTTP_CONTENT_ENCODING", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        detail = "Bodies are stored unchanged: send the body without a Content-Encoding."
        raise UnsupportedMediaType("unsupported_encoding", detail, field="Content-Encoding")
    options: dict[str, Any] = {name: meta[key] for name, key in _META.items() if key in meta}
    if options.get("content_type") == "":
        del options["content_type"]
    try:
        return _read(options, _forwarded(meta), channel, producer, now)
    except BrokerError as problem:
        problem.field = _HEADER_OF.get(problem.field, problem.field)
        raise


def from_item(
    item: object, channel: ChannelConfig, producer: Producer | None, now: datetime
) -> Publication:
    """Parse one item of a batch. Raises BrokerError that names the field."""
    if not isinstance(item, dict):
        raise _refuse("", "Each item is a JSON object.")
    for name in item:
        if name not in ITEM_FIELDS:
            raise _refuse(name[:100], f"There is no such field; choose from {_KNOWN}.")
    # Serializers write null for an option that is not set.
    options = {name: item[name] for name in _HEADER_OF if item.get(name) is not None}
    forwarded = _item_headers(item.get("headers"))
    return from_options(options, forwarded, _item_body(item), channel, producer, now)


def from_options(
    options: Mapping[str, Any],
    forwarded: Mapping[str, str],
    body: bytes,
    channel: ChannelConfig,
    producer: Producer | None,
    now: datetime,
) -> Publication:
    """Check the options of a batch's item that are set, its headers and body.

    Raises BrokerError.
    """
    return with_body(_read(options, forwarded, channel, producer, now), body, channel)


def with_body(publication: Publication, body: bytes, channel: ChannelConfig) -> Publication:
    """Add the body, and check its size and its event type's schema.

    Raises BrokerError.
    """
    if len(body) > channel.max_body_bytes:
        detail = f"The body is larger than {channel.max_body_bytes} bytes."
        raise TooLarge("body_too_large", detail, field="body")
    schema = channel.schemas.get(publication.event_type)
    if schema is not None:
        checker = _checker(channel.slug, publication.event_type, schema)
        if fault := json_schema.fault(checker, body):
            raise Invalid("schema_violation", fault, field="body")
    return publication._replace(body=body)


def channel_of(slug: str, *, refresh: bool = True) -> ChannelConfig:
    """The channel from the config cache. Raises NotFound."""
    channel = config_cache.channel(slug, refresh=refresh)
    if channel is None:
        raise NotFound("unknown_channel", f"There is no channel {slug}.")
    return channel


def check_rate(producer: Producer | None, count: int) -> None:
    """Raise RateLimited if the producer is over its rate."""
    wait = limits.take_from_rate(producer, count)
    if wait is not None:
        detail = f"The producer exceeds its rate limit; try again in {wait:.3f} seconds."
        raise RateLimited("rate_limited", detail, retry_after_s=wait)


def show(channel: ChannelConfig, message: Publication, result: Accepted) -> dict[str, Any]:
    """The response for a stored message."""
    public = ids.to_public(ids.MESSAGE, result.message_id)
    return {
        "id": public,
        "duplicate": result.duplicate,
        "matched_consumers": _matched(channel, message.event_type),
        "due_at": times.text(result.due_at),
        "url": f"{conf().public_url}/api/v1/messages/{public}",
    }


def _read(
    options: Mapping[str, Any],
    forwarded: Mapping[str, str],
    channel: ChannelConfig,
    producer: Producer | None,
    now: datetime,
) -> Publication:
    if fault := http.check_forwarded(forwarded):
        raise _refuse("headers", fault)
    if channel.require_idempotency_key and "idempotency_key" not in options:
        raise _refuse(
            "idempotency_key", "The channel requires an idempotency key for each message."
        )
    times_of = _times(options, channel.max_future_days, now)
    return Publication(
        body=b"",
        content_type=_content_type(options.get("content_type"), channel.content_types),
        idempotency_key=_printable(options, "idempotency_key", MAX_IDEMPOTENCY_KEY),
        event_type=_event_type(options),
        priority=_priority(options, producer),
        due_at=times_of.due_at,
        delay_ms=times_of.delay_ms,
        spread_ms=times_of.spread_ms,
        expires_at=times_of.expires_at,
        ordering_key=_printable(options, "ordering_key", MAX_ORDERING_KEY),
        headers=forwarded,
        producer_seq=_number(options) if "producer_seq" in options else None,
    )


def _refuse(field: str, detail: str) -> Invalid:
    return Invalid("invalid_fields", detail, field=field)


def _times(options: Mapping[str, Any], days: int, now: datetime) -> _Times:
    if TIME_OPTIONS.isdisjoint(options):
        return AT_ONCE
    if "deliver_at" in options and "delay_ms" in options:
        raise _refuse("delay_ms", "Give an instant or a delay, not both.")
    due_at = _time(options, "deliver_at", lambda value: times.soon(value, now, days=days))
    delay_ms = _time(options, "delay_ms", lambda value: times.delay_ms(value, days=days))
    spread_ms = _time(options, "spread_ms", lambda value: times.delay_ms(value, days=days)) or 0
    expires_at = _time(options, "expires_at", lambda value: times.soon(value, now))
    due = max(due_at or now + timedelta(milliseconds=delay_ms or 0), now)
    due = times.ceil_ms(due + timedelta(milliseconds=spread_ms))
    if expires_at is not None and expires_at <= due:
        raise _refuse("expires_at", "The message would expire before it is due.")
    return _Times(due_at, delay_ms, spread_ms, expires_at)


def _time(options: Mapping[str, Any], name: str, read: Callable[[object], Any]) -> Any:
    if name not in options:
        return None
    try:
        return read(options[name])
    except ValueError as error:
        raise _refuse(name, str(error)) from None


def _content_type(value: object, allowed: tuple[str, ...]) -> str:
    if value is None and not allowed:
        return ""
    short = isinstance(value, str) and len(value) <= MAX_CONTENT_TYPE_LENGTH
    match = _CONTENT_TYPE.fullmatch(str(value)) if short else None
    if match is None:
        detail = "A content type looks like application/json or text/plain; charset=utf-8."
        raise UnsupportedMediaType("unsupported_media_type", detail, field="content_type")
    media = match[1].lower()
    if allowed and media not in allowed and media.split("/")[0] + "/*" not in allowed:
        detail = f"The channel accepts {', '.join(allowed)}."
        raise UnsupportedMediaType("unsupported_media_type", detail, field="content_type")
    return match[0]


def _printable(options: Mapping[str, Any], name: str, most: int) -> str:
    value = options.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > most or not _PRINTABLE.fullmatch(value):
        raise _refuse(name, f"1 to {most} printable ASCII characters are needed.")
    return value


def _event_type(options: Mapping[str, Any]) -> str:
    value = options.get("event_type")
    if value is None:
        return ""
    fault = names.event_type(value) if isinstance(value, str) else "Text is needed."
    if fault:
        raise _refuse("event_type", fault)
    return str(value)


def _priority(options: Mapping[str, Any], producer: Producer | None) -> int:
    value = options.get("priority")
    if value is None:
        return producer.default_priority if producer else DEFAULT_PRIORITY
    digit = isinstance(value, str) and len(value) == 1 and value in "0123456789"
    level = int(value) if digit else whole_number(value)
    if level is None or not 0 <= level <= 9:
        raise _refuse("priority", "A whole number from 0 (lowest) to 9 is needed.")
    if producer is not None and level > producer.max_priority:
        detail = f"The producer's highest priority is {producer.max_priority}."
        raise Invalid("priority_too_high", detail, field="priority")
    return level


def _number(options: Mapping[str, Any]) -> int:
    value = options["producer_seq"]
    digits = isinstance(value, str) and len(value) <= 16 and value.isascii() and value.isdecimal()
    number = int(value) if digits else whole_number(value)
    if number is None or not 0 <= number <= sequence.MAX_NUMBER:
        raise _refuse("producer_seq", f"A whole number from 0 to {sequence.MAX_NUMBER} is needed.")
    if not options.get("ordering_key"):
        raise _refuse("producer_seq", "A sequence number needs an ordering key: send one as well.")
    return number


def _forwarded(meta: Mapping[str, Any]) -> dict[str, str]:
    given = {name: meta[key] for key, name in FORWARDED.items() if key in meta}
    for key in [key for key in meta if key.startswith(PREFIX)]:
        name = key[len(PREFIX) :].replace("_", "-").title()
        # The web server passes '' for a value that it cannot decode.
        if not meta[key]:
            raise _refuse("headers", f"Hookstation-Header-{name[:80]} {_EMPTY}")
        given[name] = meta[key]
    return given


def _item_headers(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _refuse("headers", "An object of header names and text values is needed.")
    if len({http.canonical(name) for name in value}) < len(value):
        raise _refuse("headers", "A header occurs twice.")
    return value


def _item_body(item: Mapping[str, Any]) -> bytes:
    text, encoded = item.get("body"), item.get("body_base64")
    if (text is None) == (encoded is None):
        raise _refuse("body", "Give either body (text) or body_base64.")
    name, value = ("body", text) if encoded is None else ("body_base64", encoded)
    if not isinstance(value, str):
        raise _refuse(name, "Text is needed; write JSON bodies as the text of the JSON.")
    try:
        return value.encode() if encoded is None else b64decode(value, validate=True)
    except UnicodeEncodeError:
        raise _refuse(name, "Unpaired surrogates are not text.") from None
    except (BadBase64, ValueError):
        raise _refuse(name, "This is not base64.") from None


def _checker(channel: str, event_type: str, schema: Any) -> Checker:
    # The config cache returns the same object until configuration changes, then a new one.
    kept = _checkers.get((channel, event_type))
    if kept is None or kept[0] is not schema:
        kept = _checkers[channel, event_type] = (schema, json_schema.compiled(schema))
    return kept[1]


def _matched(channel: ChannelConfig, event_type: str) -> int:
    count = len(channel.wanting(event_type))
    return min(count, 1) if channel.kind == "queue" else count
