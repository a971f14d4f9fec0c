"""Check the names that people give, and match event types with filter patterns."""

import re
from collections.abc import Iterator, Sequence

MAX_SLUG_LENGTH = 100
MAX_EVENT_TYPE_LENGTH = 128

_SLUG = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_SLUG_LENGTH - 1}}}")
_EVENT_TYPE = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*")
EVERYTHING = "*"
_BELOW = ".*"


def slug(value: str) -> str | None:
    """Return what is wrong with a channel's, producer's or consumer's name; None if it is valid."""
    if _SLUG.fullmatch(value):
        return None
    return (
        f"A name has 1 to {MAX_SLUG_LENGTH} characters: lower-case letters, digits, dots, "
        "underscores and hyphens, and begins with a letter or digit."
    )


def event_type(value: str) -> str | None:
    """Return what is wrong with the name of an event type; None if it is valid."""
    if len(value) <= MAX_EVENT_TYPE_LENGTH and _EVENT_TYPE.fullmatch(value):
        return None
    return (
        f"An event type has 1 to {MAX_EVENT_TYPE_LENGTH} characters: words of letters, digits and "
        "underscores, joined by dots, like order.created."
    )


def matches(patterns: Sequence[str], event_type: str) -> bool:
    """Whether the patterns match a message of this event type ('' for none).

    No patterns, or ``*``, match everything; a name matches only itself; ``order.*`` matches
    everything below ``order``, at any depth, but not ``order``.
    """
    return not patterns or any(_matches_one(pattern, event_type) for pattern in patterns)


def patterns_of(event_type: str) -> Iterator[str]:
    """Yield each pattern that matches messages of this event type ('' for none)."""
    yield EVERYTHING
    if event_type:
        yield event_type
    end = event_type.find(".")
    while end >= 0:
        yield event_type[:end] + _BELOW
        end = event_type.find(".", end + 1)


def covers(pattern: str, other: str) -> bool:
    """Whether ``pattern`` matches everything that the pattern ``other`` matches."""
    if pattern in (EVERYTHING, other):
        return True
    return pattern.endswith(_BELOW) and other.startswith(pattern[:-1])


def validate_pattern(pattern: str) -> str | None:
    """Return what is wrong with a pattern, as a sentence; None if it is valid."""
    if pattern == EVERYTHING or event_type(pattern.removesuffix(_BELOW)) is None:
        return None
    return "A pattern is an event type, or one followed by .* for all below it, or * for all."


def _matches_one(pattern: str, event_type: str) -> bool:
    if pattern == EVERYTHING:
        return True
    if pattern.endswith(_BELOW):
        return event_type.startswith(pattern[:-1])
    return pattern == event_type and event_type != ""
