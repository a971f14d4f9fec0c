"""Direct claim: a pump claims deliveries as the fan-out makes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple


class ClaimAllowance(NamedTuple):
    """How much of one consumer's new work may be taken at once."""

    limit: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class DirectClaim:
    """A pump that takes what is due now as it is made."""

    owner: int
    """Its generation."""
    now: datetime
    leave: Callable[[Mapping[int, int]], Mapping[int, ClaimAllowance]]
    """Given how many each consumer would get, what may be taken. Consumers that have something of
    the priority ``least`` or more due already must not be in the answer: it might be more urgent.
    May be asked again when the transaction is."""
    least: int = 0
    """Of lower priority it takes nothing: something more urgent waits for the same requests."""

    def end(self, lease_ms: int) -> datetime:
        """When a lease ends that begins now."""
        return self.now + timedelta(milliseconds=lease_ms)
