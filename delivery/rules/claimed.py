"""A delivery as its worker knows it while holding the lease."""

from datetime import datetime
from typing import NamedTuple


class ClaimedDelivery(NamedTuple):
    """One leased delivery.

    A tuple, because one is created for every attempt, at a fifth of the cost of a frozen dataclass.
    """

    id: int
    message_id: int
    consumer_id: int
    attempt: int
    """Number of this attempt; the fence of every write that closes it."""
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
        """Number of this try since the last replay, including tries that were not charged."""
        return self.failure_count + self.interruption_count + 1
