"""What a message on a dead-letter channel says of where it comes from."""

from collections.abc import Mapping

PREFIX = "Hookstation-Dead-Letter-"
"""Of headers that only the broker writes: producers and consumers may set none that begin so."""
HOPS = f"{PREFIX}Hops"
MAX_HOPS = 5
"""Dead-letter channels that a message may pass, one behind the other."""


def headers(
    carried: Mapping[str, str],
    *,
    channel: str,
    consumer: str,
    message: str,
    reason: str,
    attempts: int,
) -> dict[str, str]:
    """The message's forwarded headers with those that say how it died; of a former death none."""
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
    """How many dead-letter channels the message has passed."""
    return int(carried.get(HOPS, 0))
