"""Read the body of a request: its exact bytes, of limited size, complete or not at all."""

import json
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, Protocol

from channels_app.core.errors import LengthRequired, Malformed, RateLimited, TooLarge
from channels_app.ingest.concurrency import bodies

TOO_MANY = "Too many request bodies arrive slowly at the same time; this one was not read."


class Sender(Protocol):
    """The sender of a body, for the limit on concurrent bodies (concurrency.py)."""

    @property
    def owner(self) -> Hashable:
        """Key under which the limit counts the sender."""


class AuthenticatedRequest(NamedTuple):
    """A sender without a key, who knows the address of a row."""

    owner: int


def parse_json(body: bytes) -> Any:
    """Parse standard JSON, without NaN. Raises Malformed."""
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
    """Raise Malformed unless the body is one complete JSON object or array.

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


def _too_large(most: int) -> TooLarge:
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
