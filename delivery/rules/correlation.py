"""Read provider ids from responses and callbacks, which correlate them (S3-39)."""

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

from channels_app.rules import correlation, paths

MAX_WORDS = 1000
"""Most messages in one callback: as many as Meta sends."""
MAX_ID_LENGTH = 500
"""Characters of a provider's id; longer ones are ignored."""


class ProviderStatus(NamedTuple):
    """The status of one message in a callback."""

    provider_id: str
    ok: bool


def correlation_id(consumer_id: int, provider_id: str) -> int:
    """Hash a consumer and a provider's id to a positive 63-bit number, like lane ids.

    Two ids with the same number would be confused. Among a million ids that exist at one time that
    happens in one of ten million installations.
    """
    text = f"{consumer_id}:{provider_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8, person=b"provider").digest()) >> 1


def named(ack: Mapping[str, Any] | None, answer: bytes) -> str:
    """Return the provider's id from the response to a delivery; '' if not configured or not found.

    ``answer`` is the stored part of the response; if that is cut, it is no valid JSON and has no
    id.
    """
    setting = correlation.of(ack)
    if setting is None:
        return ""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return ""
    return next((_id(it) for it in paths.found(setting["response_id"], value)), "")


def words(setting: Mapping[str, Any], body: object) -> Iterator[ProviderStatus]:
    """Yield the statuses of a callback in its order, except those that mean neither ok nor failed.

    Raises ValueError when it contains more than ``MAX_WORDS`` messages.
    """
    statuses = (
        iter([body]) if setting["callback"] is None else paths.found(setting["callback"], body)
    )
    for one in islice(statuses, MAX_WORDS):
        provider_id = _first(setting["callback_id"], one)
        status = _first(setting["callback_status"], one)
        if provider_id and status in setting["accept"]:
            yield ProviderStatus(provider_id, ok=True)
        elif provider_id and status in setting["fail"]:
            yield ProviderStatus(provider_id, ok=False)
    if next(statuses, None) is not None:
        raise ValueError(f"A callback has at most {MAX_WORDS} reports.")


def _first(path: str, value: object) -> str:
    return next((_id(it) for it in paths.found(path, value)), "")


def _id(value: object) -> str:
    # bool is a subclass of int.
    if isinstance(value, str | int) and not isinstance(value, bool):
        text = str(value)
        return text if len(text) <= MAX_ID_LENGTH else ""
    return ""
