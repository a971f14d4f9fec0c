"""Correlation: what an answer and a callback of a provider say about one message (S3-39)."""

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

from channels_app.rules import correlation, paths

MAX_WORDS = 1000
"""Told about in one callback: as many as Meta sends."""
MAX_ID_LENGTH = 500
"""Characters of a provider's id; a longer one is none."""


class ProviderStatus(NamedTuple):
    """What a callback says about one message."""

    provider_id: str
    ok: bool


def correlation_id(consumer_id: int, provider_id: str) -> int:
    """A consumer and an id of its provider in a positive 63-bit number, as lanes have theirs.

    Two ids that met in one number would be taken for each other; among a million that live at one
    time that happens once in ten million installations.
    """
    text = f"{consumer_id}:{provider_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8, person=b"provider").digest()) >> 1


def named(ack: Mapping[str, Any] | None, answer: bytes) -> str:
    """The provider's id in the answer to a delivery; '' where none is looked for, or none is there.

    ``answer`` is what is kept of it: what does not end within that is no JSON, and names nothing.
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
    """What a callback says, in its order; of statuses that mean neither nothing is said.

    Raises ValueError when it tells about more than ``MAX_WORDS`` messages.
    """
    told = iter([body]) if setting["callback"] is None else paths.found(setting["callback"], body)
    for one in islice(told, MAX_WORDS):
        provider_id = _first(setting["callback_id"], one)
        status = _first(setting["callback_status"], one)
        if provider_id and status in setting["accept"]:
            yield ProviderStatus(provider_id, ok=True)
        elif provider_id and status in setting["fail"]:
            yield ProviderStatus(provider_id, ok=False)
    if next(told, None) is not None:
        raise ValueError(f"At most {MAX_WORDS} messages are told about in one callback.")


def _first(path: str, value: object) -> str:
    return next((_id(it) for it in paths.found(path, value)), "")


def _id(value: object) -> str:
    # True is an int to Python.
    if isinstance(value, str | int) and not isinstance(value, bool):
        text = str(value)
        return text if len(text) <= MAX_ID_LENGTH else ""
    return ""
