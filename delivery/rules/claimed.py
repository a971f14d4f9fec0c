"""Claimed: what a worker knows of a delivery that is its own until the lease ends."""

from datetime import datetime
from typing import NamedTuple


class ClaimedDelivery(NamedTuple):
    """One delivery under a lease. A tuple: one is made for every attempt, at a fifth of the price
    of a frozen dataclass."""

    id: int
    message_id: int
    consumer_id: int
    attempt: int
    """Number of this attempt, the fence of every write that closes it."""
    failure_count: int
    interruption_count: int
    priority: int
    due_at: datetime
    accepted_at: datetime
    event_type: str
    ordering_key: str
    replayed: bool
    lease_until: datetime

    @property
    def tries(self) -> int:
        """Which try this is since the last replay: charged or not, each one before it counts."""
        return self.failure_count + self.interruption_count + 1
