"""Checks of a reconciliation, what their findings mean, and its running sums."""

from collections import Counter as Tally
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from channels_app.core.program import typed
from delivery.core.lifecycle import DeliveryState
from pipeline.contract.results import CHECKS, DOUBLED, UNASKED

STATES = tuple(state.value for state in DeliveryState)
SENDABLE = frozenset(STATES) - {DeliveryState.DELIVERED.value, DeliveryState.CANCELLED.value}
"""States of deliveries that need the body of their message; a dead one may be replayed."""


class Check(StrEnum):
    """A check of the reconciliation; also the name under which findings are stored and exported."""

    LOST = "lost"
    UNDISPATCHED = "undispatched"
    FAN_OUT = "fan_out"
    MISSING = "missing"
    ATTEMPTS = "attempts"
    COUNTERS = "counters"
    LEASES = "leases"
    LATE = "late"
    BODIES = "bodies"
    ORPHANS = "orphans"


class Explanation(NamedTuple):
    """Texts about a check for people."""

    row: str
    """The rows that are counted and listed."""
    rows: str
    meaning: str
    remedy: str


EXPLANATIONS: dict[Check, Explanation] = {
    Check.LOST: Explanation(
        "message",
        "messages",
        "was accepted, as the record of its idempotency key shows, and is gone: consumers that "
        "have not received it will not.",
        "Restore these messages from a backup, or ask their producers, who have the ids in their "
        "responses, to publish them again with other keys: with the same key a message counts as "
        "a repeat until the key's window ends.",
    ),
    Check.UNDISPATCHED: Explanation(
        "message",
        "messages",
        "was accepted and is not fanned out yet: no consumer gets it before that.",
        "Start `manage.py broker` or a worker. If one runs, look at the last error of the sweep "
        "`undispatched` on the console's page System.",
    ),
    Check.FAN_OUT: Explanation(
        "message",
        "messages",
        "has more or fewer deliveries than its fan-out recorded: something other than the broker "
        "deleted or added rows.",
        "Create missing deliveries with a backfill of the consumer that lacks them "
        "(POST .../consumers/{client_id}/backfill). If many are missing, restore the database.",
    ),
    Check.MISSING: Explanation(
        "message",
        "messages",
        "matches this consumer's filter, but has no delivery to it.",
        "A backfill of this consumer creates the deliveries: "
        "POST /api/v1/channels/{channel}/consumers/{client_id}/backfill.",
    ),
    Check.ATTEMPTS: Explanation(
        "delivery",
        "deliveries",
        "has a history of attempts that differs from its count: numbers must be 1 to "
        "attempt_count, without the one in flight. Only the record is wrong, not the delivery.",
        "A history cannot be repaired. Find out what wrote to the tables besides the broker. The "
        "deliveries can be replayed.",
    ),
    Check.COUNTERS: Explanation(
        "counter",
        "counters",
        "differs from the number of rows: figures shown to people are wrong, deliveries are not.",
        "`manage.py repair_counters` recounts the rows and corrects the counters.",
    ),
    Check.LEASES: Explanation(
        "delivery",
        "deliveries",
        "is in flight after the end of its lease, or with a lease longer than allowed: it is not "
        "sent meanwhile.",
        "A running `manage.py broker` queues it again within seconds: start it, or look at the "
        "last errors of the sweeps `orphans` and `lapsed` on the console's page System.",
    ),
    Check.LATE: Explanation(
        "delivery",
        "deliveries",
        "is due and not claimed, although its consumer is active, not failing, not limited and "
        "has nothing in flight.",
        "Start `manage.py broker` or a worker. If one runs, read its log, and check `pumps` in "
        "/readyz.",
    ),
    Check.BODIES: Explanation(
        "message",
        "messages",
        "can still be sent or replayed, but its body is missing: its deliveries will become dead "
        "letters with the outcome body_unreadable.",
        "Restore the body from a backup of the table of bodies, or ask the producer to publish it "
        "again.",
    ),
    Check.ORPHANS: Explanation(
        "row",
        "rows",
        "refers to a missing row: a delivery to its message or consumer, a message to its "
        "channel, an attempt to its delivery, or a body to its message. It will not be sent.",
        "If a `manage.py delete_channel` was interrupted, run it again. Otherwise something wrote "
        "to the tables besides the broker: restore the missing rows, or delete these.",
    ),
}
"""A finding is worded as: number, ``row`` or ``rows``, ``meaning``; then ``remedy``."""
LAKE_EXPLANATIONS: dict[str, Explanation] = {
    **{
        check.value: explanation
        for check, explanation in EXPLANATIONS.items()
        if check.value in CHECKS
    },
    DOUBLED: Explanation(
        "row",
        "rows",
        "is there twice: a message, a delivery or an attempt with the same key twice in the lake "
        "or in lake and tables, or two deliveries of a message to one consumer of which nobody "
        "asked for the second.",
        "Reports count it twice, nothing was sent twice for it. Look at the archive's segments of "
        "that day and at what wrote to the lake besides the pipeline.",
    ),
    UNASKED: Explanation(
        "row",
        "rows",
        "is a delivery to a consumer of another channel than its message's: what is in it may "
        "have been sent to somebody whom it does not concern.",
        "Look at who wrote to the tables besides the broker, and ask the receiver to delete it.",
    ),
}
"""The same by the name of a check of lake and tables together (pipeline/contract/results.py)."""


def remedy(check: Check, channel: str, consumer: str) -> str:
    """Return what to do about a finding, with the names of channel and consumer if known."""
    text = typed(EXPLANATIONS[check].remedy)
    return text.replace("{channel}", channel or "{channel}").replace(
        "{client_id}", consumer or "{client_id}"
    )


class MismatchPlace(NamedTuple):
    """Where a mismatch is: ids of channel and consumer, 0 for none."""

    channel_id: int = 0
    consumer_id: int = 0


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Mismatching rows that one check found for a channel and consumer."""

    check: Check
    place: MismatchPlace
    channel: str
    """The channel's name; empty if the rows belong to none."""
    consumer: str
    """The client id; empty if the rows belong to no single consumer."""
    count: int
    ids: tuple[str, ...]
    """The first ids, in their public form."""

    @property
    def sentence(self) -> str:
        """Return how many rows mismatch, and what that means."""
        explained = EXPLANATIONS[self.check]
        return f"{self.count:,} {explained.row if self.count == 1 else explained.rows}: each " + (
            explained.meaning
        )

    @property
    def remedy(self) -> str:
        """Return what to do about it."""
        return remedy(self.check, self.channel, self.consumer)


@dataclass(slots=True)
class Account:
    """One consumer's deliveries of the messages examined."""

    states: Tally[str] = field(default_factory=Tally)
    missing: int = 0

    @property
    def accepted(self) -> int:
        """Number of messages accepted for it: those it has and those it should have."""
        return self.states.total() + self.missing


@dataclass(slots=True)
class Inflow:
    """One channel's messages that were examined."""

    states: Tally[str] = field(default_factory=Tally)
    recorded: int = 0
    """Number of deliveries that the fan-out recorded."""


@dataclass(slots=True)
class Discrepancy:
    """The mismatches that one check found in one place."""

    count: int = 0
    ids: list[str] = field(default_factory=list)


class Reconciliation:
    """Running sums of a reconciliation. Its size grows with the consumers, not with the tables."""

    def __init__(self, most_ids: int) -> None:
        self._most_ids = most_ids
        self.inflow: dict[int, Inflow] = {}
        """By channel."""
        self.accounts: dict[int, Account] = {}
        """By consumer."""
        self.off: dict[tuple[Check, MismatchPlace], Discrepancy] = {}
        self.looked: Tally[str] = Tally()
        """Rows examined, by kind."""

    def note(self, check: Check, place: MismatchPlace, ids: Iterable[str]) -> None:
        """Count mismatching rows; keep the first ``most_ids`` ids of each check and place."""
        for id_ in ids:
            discrepancy = self.off.setdefault((check, place), Discrepancy())
            discrepancy.count += 1
            if len(discrepancy.ids) < self._most_ids:
                discrepancy.ids.append(id_)

    def count_messages(self, channel_id: int, state: str, number: int, recorded: int) -> None:
        """Count messages of one channel and state, with the deliveries that they record."""
        inflow = self.inflow.setdefault(channel_id, Inflow())
        inflow.states[state] += number
        inflow.recorded += recorded
        self.looked["messages"] += number

    def count_deliveries(self, consumer_id: int, state: str, number: int) -> None:
        """Count deliveries of one consumer and state."""
        self.accounts.setdefault(consumer_id, Account()).states[state] += number
        self.looked["deliveries"] += number

    def miss(self, place: MismatchPlace, ids: list[str]) -> None:
        """Count messages for which a consumer should have a delivery and has none."""
        self.accounts.setdefault(place.consumer_id, Account()).missing += len(ids)
        self.note(Check.MISSING, place, ids)

    @property
    def gap(self) -> int:
        """Number of mismatching rows; 0 when nothing was lost."""
        return sum(discrepancy.count for discrepancy in self.off.values())

    def by_check(self) -> dict[Check, int]:
        """Return how many rows each check found, also zero."""
        counts = dict.fromkeys(Check, 0)
        for (check, _), off in self.off.items():
            counts[check] += off.count
        return counts
