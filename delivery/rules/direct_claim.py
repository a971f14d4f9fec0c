"""Let a pump claim deliveries as the fan-out creates them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple


class ClaimAllowance(NamedTuple):
    """How many new deliveries of one consumer may be claimed at once."""

    limit: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class DirectClaim:
    """A claim of due deliveries while they are created."""

    owner: int
    """The pump's generation, or a pull worker."""
    now: datetime
    allow: Callable[[Mapping[int, int]], Mapping[int, ClaimAllowance]]
    """Called with the number of new deliveries of each consumer; returns how many may be claimed.
    It must omit consumers that already have due deliveries of priority ``min_priority`` or more,
    which might be more urgent. Called again if the transaction is retried."""
    min_priority: int = 0
    """Deliveries of lower priority are not claimed: more urgent ones wait for the same capacity."""

    def end(self, lease_ms: int) -> datetime:
        """Return the end of a lease that begins now."""
        return self.now + timedelta(milliseconds=lease_ms)
