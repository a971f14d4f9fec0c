"""An in-memory model of docs/states.md: one row for each delivery."""

from collections import Counter as Tally
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from delivery.core.lifecycle import FINISHED, FREE_ATTEMPTS, DeliveryState, Transition
from delivery.models.counter import COUNTED, MADE

QUEUED, IN_FLIGHT = DeliveryState.QUEUED, DeliveryState.IN_FLIGHT
DELIVERED, DEAD, CANCELLED = DeliveryState.DELIVERED, DeliveryState.DEAD, DeliveryState.CANCELLED


@dataclass(slots=True)
class Row:
    """One delivery."""

    id: int
    message: int
    consumer: int
    due: datetime | None
    expires: datetime | None
    state: DeliveryState = QUEUED
    attempts: int = 0
    failures: int = 0
    interruptions: int = 0
    owner: int | None = None
    chances: int = 1
    """How often it may be delivered: once, and once more for each replay."""
    forgotten: set[int] = field(default_factory=set)
    """Attempts that were deleted from the history."""

    @property
    def shown(self) -> tuple[object, ...]:
        """Values that the table must contain for it."""
        return (
            *(self.state.value, self.attempts, self.failures, self.interruptions),
            *(self.due, self.owner),
        )

    def is_due(self, now: datetime) -> bool:
        """Return whether it may be claimed."""
        return self.due is not None and self.due <= now

    def is_over(self, now: datetime) -> bool:
        """Return whether it has expired."""
        return self.expires is not None and self.expires <= now

    def take(self, owner: int, until: datetime) -> None:
        """Claim it."""
        self.state, self.owner, self.due = IN_FLIGHT, owner, until
        self.attempts += 1

    def finish(self, state: DeliveryState) -> None:
        """End it: only a replay leads on from here."""
        self.state, self.owner, self.due = state, None, None

    def give_back(self, now: datetime, *, interrupted: bool = True) -> None:
        """Queue it again after its worker is gone."""
        self.state, self.owner, self.due = QUEUED, None, now
        self.interruptions += interrupted

    def settle(self, move: Transition, now: datetime) -> None:
        """Apply the transition after a response."""
        self.failures += move.charged
        if move.due_in is None:
            self.finish(move.state)
        else:
            self.give_back(now + timedelta(seconds=move.due_in), interrupted=not move.charged)

    def replay(self, now: datetime) -> None:
        """Queue it with fresh attempts."""
        self.state, self.due = QUEUED, now
        self.failures = self.interruptions = 0
        self.chances += 1


@dataclass(slots=True)
class Books:
    """All deliveries of one installation."""

    rows: dict[int, Row] = field(default_factory=dict)

    def of(self, consumers: Iterable[int], *states: DeliveryState) -> list[Row]:
        """Return rows of some consumers in some states."""
        wanted = set(consumers)
        return [row for row in self.rows.values() if row.consumer in wanted and row.state in states]

    def due(self, consumer: int, now: datetime) -> list[Row]:
        """Return the claimable rows of one consumer, oldest first."""
        due = [row for row in self.of([consumer], QUEUED, IN_FLIGHT) if row.is_due(now)]
        return sorted(due, key=lambda row: (row.due or now, row.id))

    def claim(
        self, consumer: int, limit: int, now: datetime, owner: int, until: datetime
    ) -> set[tuple[int, int]]:
        """Claim the oldest due rows; return ids and attempt numbers of those that were leased."""
        taken: set[tuple[int, int]] = set()
        for row in self.due(consumer, now)[:limit]:
            is_worn = row.interruptions >= FREE_ATTEMPTS
            row.interruptions += row.state is IN_FLIGHT  # its lease has lapsed
            if row.is_over(now):
                row.finish(CANCELLED)
            elif is_worn:
                row.finish(DEAD)
            else:
                row.take(owner, until)
                taken.add((row.id, row.attempts))
        return taken

    def replayable(self, row: Row, retired: set[int], now: datetime) -> bool:
        """Return whether a person may replay it."""
        return row.state in FINISHED and row.consumer not in retired and not row.is_over(now)

    def counts(self, consumer: int) -> dict[str, int]:
        """Return the values that the counters must have."""
        rows = [row for row in self.rows.values() if row.consumer == consumer]
        tally = Tally(row.state.value for row in rows)
        return {state: tally[state] for state in COUNTED} | {MADE: len(rows)}
