"""Headers by which a message on a dead-letter channel describes its origin."""

from collections.abc import Mapping

PREFIX = "Hookstation-Dead-Letter-"
"""Prefix of headers that only the broker sets; producers and consumers may not."""
HOPS = f"{PREFIX}Hops"
MAX_HOPS = 5
"""Most dead-letter channels that a message may pass in succession."""


def headers(
    carried: Mapping[str, str],
    *,
    channel: str,
    consumer: str,
    message: str,
    reason: str,
    attempts: int,
) -> dict[str, str]:
    """Return the forwarded headers with those of this death instead of those of an earlier one."""
    return {
        **{name: value for name, value in carried.items() if not name.startswith(PREFIX)},
        f"{PREFIX}Channel": channel,
        f"{PREFIX}Consumer": consumer,
        f"{PREFIX}Message": message,
        f"{PREFIX}Reason": reason,
        f"{PREFIX}Attempts": str(attempts),
        HOPS: str(hops(carried) + 1),
    }


def hops(carried: Mapping[str, str]) -> int:
    """Return how many dead-letter channels the message has passed."""
    return int(carried.get(HOPS, 0))
