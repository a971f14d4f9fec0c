"""What a team may put into a key: no more than it has already."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from channels_app.rules.fields import Fault

TEAM_SCOPES = ("register", "receive", "read", "replay")
PRODUCER_SCOPES = ("publish",)
"""Only a producer publishes: a message without one would belong to nobody. It does nothing else:
to the broker a producer's key may use internal channels, which are no team's to look into."""


class Held(NamedTuple):
    """What a working key of the same owner may do, and on which channels it was granted."""

    scopes: Collection[str]
    channels: Collection[str]
    """None at all: all for a producer's key, those that are open to every team for a team's."""


def excess(
    scopes: Collection[str],
    channels: Collection[str],
    *,
    of_producer: bool,
    held: Sequence[Held],
) -> Fault | None:
    """What of a wished key goes too far; None when a team may give all of it.

    Each scope on each channel needs one key that has both. ``admin`` counts for nothing here.
    """
    offered = PRODUCER_SCOPES if of_producer else TEAM_SCOPES
    if too_much := [scope for scope in scopes if scope not in offered]:
        owner = "of a producer" if of_producer else "of a team"
        return Fault("scopes", f"A key {owner} cannot get {too_much[0]} here.")
    everywhere = _everywhere(held) if of_producer else frozenset()
    if of_producer and not channels and not everywhere.issuperset(scopes):
        return Fault("channels", "Name the channels that the key may use.")
    for scope in scopes:
        for channel in channels:
            if scope not in everywhere and not _covered(scope, channel, held):
                lacking = f"No working key of the same owner may {scope} on {channel}."
                return Fault("channels", f"{lacking} Ask an operator for one.")
    return None


def _everywhere(held: Sequence[Held]) -> frozenset[str]:
    return frozenset(scope for key in held if not key.channels for scope in key.scopes)


def _covered(scope: str, channel: str, held: Sequence[Held]) -> bool:
    return any(scope in key.scopes and channel in key.channels for key in held)
