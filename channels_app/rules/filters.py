"""Match event types with the patterns of a consumer's filter."""

from collections.abc import Sequence

from channels_app.rules import names

EVERYTHING = "*"
_BELOW = ".*"


def matches(patterns: Sequence[str], event_type: str) -> bool:
    """Whether the patterns match a message of this event type ('' for none).

    No patterns, or ``*``, match everything; a name matches only itself; ``order.*`` matches
    everything below ``order``, at any depth, but not ``order``.
    """
    return not patterns or any(_matches_one(pattern, event_type) for pattern in patterns)


def covers(pattern: str, other: str) -> bool:
    """Whether ``pattern`` matches everything that the pattern ``other`` matches."""
    if pattern in (EVERYTHING, other):
        return True
    return pattern.endswith(_BELOW) and other.startswith(pattern[:-1])


def validate_pattern(pattern: str) -> str | None:
    """Return what is wrong with a pattern, as a sentence; None if it is valid."""
    if pattern == EVERYTHING or names.event_type(pattern.removesuffix(_BELOW)) is None:
        return None
    return "A pattern is an event type, or one followed by .* for all below it, or * for all."


def _matches_one(pattern: str, event_type: str) -> bool:
    if pattern == EVERYTHING:
        return True
    if pattern.endswith(_BELOW):
        return event_type.startswith(pattern[:-1])
    return pattern == event_type and event_type != ""
