"""What a team may put into a key: no more than it has already."""

from collections.abc import Collection, Sequence

from channels_app.rules.fields import Fault

TEAM_SCOPES = ("register", "receive", "read", "replay")
PRODUCER_SCOPES = ("publish", *TEAM_SCOPES)
"""Only a producer publishes: a message without one would belong to nobody. ``admin`` is not a
team's to give."""


def excess(
    scopes: Collection[str],
    channels: Collection[str],
    *,
    of_producer: bool,
    external: Collection[str],
    held: Sequence[Collection[str]],
) -> Fault | None:
    """What of a wished key goes too far; None when a team may give all of it.

    ``external`` are channels open to every team; ``held`` is, for each working key of the same
    owner, which channels it was granted.
    """
    offered = PRODUCER_SCOPES if of_producer else TEAM_SCOPES
    if too_much := [scope for scope in scopes if scope not in offered]:
        owner = "of a producer" if of_producer else "of a team"
        return Fault("scopes", f"A key {owner} cannot get {too_much[0]} here.")
    if of_producer and any(not granted for granted in held):
        return None  # it may use every channel already
    if of_producer and not channels:
        return Fault("channels", "Name the channels that the key may use.")
    known = set(external).union(*held)
    if lost := [slug for slug in channels if slug not in known]:
        return Fault("channels", f"There is no channel {lost[0]}, or it is not open to your team.")
    return None
