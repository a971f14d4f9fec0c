"""Check the names that people give: short, one spelling each, safe in URLs, logs and headers."""

import re

MAX_SLUG_LENGTH = 100
MAX_EVENT_TYPE_LENGTH = 128

_SLUG = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_SLUG_LENGTH - 1}}}")
_EVENT_TYPE = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*")


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
