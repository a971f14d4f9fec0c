"""Decide which rights a team may put into a key (only its own), and since when it has a right."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from channels_app.rules.fields import FieldError

TEAM_SCOPES = ("register", "receive", "read", "replay")
OPERATORS = frozenset({"sensitive", "admin"})
"""Scopes that no team may grant."""
PRODUCER_SCOPES = ("publish",)
"""Only producers publish, since every message needs an owner. They may do nothing else: a
producer's key may use internal channels, which teams must not read."""


class Held(NamedTuple):
    """The rights of a valid key of the same owner."""

    scopes: Collection[str]
    channels: Collection[str]
    """Empty: all channels for a producer's key, all external channels for a team's key."""
    expires_at: datetime | None = None


def excess(
    scopes: Collection[str],
    channels: Collection[str],
    *,
    of_producer: bool,
    held: Sequence[Held],
) -> FieldError | None:
    """The first right of a requested key that a team may not grant; None if it may grant all.

    Each scope on each channel needs one key that has both. ``admin`` does not imply others here.
    """
    offered = PRODUCER_SCOPES if of_producer else TEAM_SCOPES
    if too_much := [scope for scope in scopes if scope not in offered]:
        owner = "of a producer" if of_producer else "of a team"
        return FieldError("scopes", f"A key {owner} cannot have the scope {too_much[0]} here.")
    for scope, channel, givers in _given(scopes, channels, of_producer=of_producer, held=held):
        if givers:
            continue
        if not channel:
            return FieldError("channels", "Name the channels that the key may use.")
        lacking = f"No working key of the same owner may {scope} on {channel}."
        return FieldError("channels", f"{lacking} Ask an operator for one.")
    return None


def end(
    scopes: Collection[str],
    channels: Collection[str],
    *,
    of_producer: bool,
    held: Sequence[Held],
) -> datetime | None:
    """When the first of the granted rights expires; None if none does.

    A right lasts as long as the last key that has it. Access to external channels needs no key.
    """
    given = _given(scopes, channels, of_producer=of_producer, held=held)
    return min((last for *_, givers in given if (last := _last(givers))), default=None)


def every(scopes: Collection[str], *, of_producer: bool, held: Sequence[Held]) -> list[str]:
    """Channels to list in a key for all that its owner may use; [] if the list may be empty."""
    if not of_producer or excess(scopes, (), of_producer=True, held=held) is None:
        return []
    named = [
        {channel for key in held if scope in key.scopes for channel in key.channels}
        for scope in scopes
    ]
    return sorted(set[str]().union(*named).intersection(*named))


def since(spans: Iterable[tuple[datetime, datetime | None]], now: datetime) -> datetime:
    """Since when a right has been held without interruption; ``now`` if it is not held.

    Each span is a time in which something, such as a key, gave the right. Its end is exclusive;
    None means that it is still open.
    """
    first, last = now, now
    for begin, end in sorted(spans, key=lambda span: span[0]):
        if begin >= now:
            break
        if first == now or begin > last:
            first, last = begin, begin
        last = max(last, min(end or now, now))
    return first if last >= now else now


def _given(
    scopes: Collection[str],
    channels: Collection[str],
    *,
    of_producer: bool,
    held: Sequence[Held],
) -> Iterator[tuple[str, str, list[Held]]]:
    """Each scope and channel with the keys that grant it; '' stands for all channels."""
    for scope in scopes:
        able = [key for key in held if scope in key.scopes]
        everywhere = [key for key in able if not key.channels] if of_producer else []
        if of_producer and not channels:
            yield scope, "", everywhere
        for channel in channels:
            yield scope, channel, everywhere + [key for key in able if channel in key.channels]


def _last(givers: Sequence[Held]) -> datetime | None:
    ends = [key.expires_at for key in givers if key.expires_at]
    return max(ends) if ends and len(ends) == len(givers) else None
