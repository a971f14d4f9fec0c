"""Which event types a consumer wants to hear of."""

from collections.abc import Sequence

from channels_app.rules import names

EVERYTHING = "*"
_BELOW = ".*"


def matches(patterns: Sequence[str], event_type: str) -> bool:
    """Whether a message of this event type ('' for none) is wanted.

    No patterns at all, or ``*``, want everything; a name wants exactly itself; ``order.*`` wants
    all below ``order``, at any depth, and not ``order``.
    """
    return not patterns or any(_matches_one(pattern, event_type) for pattern in patterns)


def covers(pattern: str, other: str) -> bool:
    """Whether ``pattern`` matches everything that the pattern ``other`` matches."""
    if pattern in (EVERYTHING, other):
        return True
    return pattern.endswith(_BELOW) and other.startswith(pattern[:-1])


def validate_pattern(pattern: str) -> str | None:
    """What is wrong with a pattern, as a sentence; None when it will do."""
    if pattern == EVERYTHING or names.event_type(pattern.removesuffix(_BELOW)) is None:
        return None
    return "A pattern is an event type, or one followed by .* for all below it, or * for all."


def _matches_one(pattern: str, event_type: str) -> bool:
    if pattern == EVERYTHING:
        return True
    if pattern.endswith(_BELOW):
        return event_type.startswith(pattern[:-1])
    return pattern == event_type and event_type != ""
