"""Checks of a reconciliation, what their findings mean, and its running sums."""

from collections import Counter as Tally
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from channels_app.rules.program import typed
from delivery.rules.lifecycle import DeliveryState

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
        "was acknowledged, as the record of its idempotency key says, and is gone: nobody will "
        "get it who has not got it yet.",
        "Restore these messages from a backup, or ask their producers, who have the ids in their "
        "answers, to publish them again with other keys: with the same one a message is taken for "
        "a repetition until its window closes.",
    ),
    Check.UNDISPATCHED: Explanation(
        "message",
        "messages",
        "was accepted and is still not fanned out: no consumer will get it before that.",
        "Start `manage.py broker` or a worker; if one runs, look at the last error of the sweep "
        "`not_fanned_out` on the console's page System.",
    ),
    Check.FAN_OUT: Explanation(
        "message",
        "messages",
        "has more or fewer deliveries than its fan-out wrote down: a row was lost or added "
        "behind the broker's back.",
        "Make what is missing up with a backfill of the consumer that lacks it "
        "(POST .../consumers/{client_id}/backfill); restore the database if many are gone.",
    ),
    Check.MISSING: Explanation(
        "message",
        "messages",
        "should have gone to this consumer, whose filter lets it through, and has no delivery.",
        "A backfill of this consumer makes them: "
        "POST /api/v1/channels/{channel}/consumers/{client_id}/backfill.",
    ),
    Check.ATTEMPTS: Explanation(
        "delivery",
        "deliveries",
        "has other attempts in its history than it counts: numbers must be 1 to attempt_count, "
        "without the one in flight. What was sent or not sent is not in doubt, its record is.",
        "Nothing repairs a history. Look at these deliveries and at what wrote to the tables "
        "besides the broker; they can be replayed.",
    ),
    Check.COUNTERS: Explanation(
        "counter",
        "counters",
        "says another number of deliveries than there are rows: figures shown to people are wrong, "
        "deliveries are not.",
        "`manage.py repair_counters` recounts the rows and corrects the counters.",
    ),
    Check.LEASES: Explanation(
        "delivery",
        "deliveries",
        "is held by a worker beyond the end of its lease, or longer than any lease: nobody sends "
        "it while it is.",
        "A running `manage.py broker` gives it back within seconds: start it, or look at the last "
        "errors of the sweeps `orphans` and `lapsed` on the console's page System.",
    ),
    Check.LATE: Explanation(
        "delivery",
        "deliveries",
        "is due and nobody takes it, although its consumer is active, not failing, not limited "
        "and has nothing in flight.",
        "Start `manage.py broker` or a worker; if one runs, look at its log, and at `pumps` in "
        "/readyz.",
    ),
    Check.BODIES: Explanation(
        "message",
        "messages",
        "may still be sent, or replayed, and its body is gone: its deliveries will end as dead "
        "letters of the outcome body_unreadable.",
        "Restore the body from a backup of the table of bodies, or ask the producer to publish it "
        "again.",
    ),
    Check.ORPHANS: Explanation(
        "row",
        "rows",
        "belongs to something that is gone: a delivery to a message or consumer, a message to a "
        "channel, an attempt to a delivery, a body to a message. Nothing will be sent of it.",
        "Run `manage.py delete_channel` again if one was broken off. Otherwise something wrote to "
        "the tables besides the broker: restore what is missing, or delete the rows.",
    ),
}
"""A finding is worded as: number, ``row`` or ``rows``, ``meaning``; then ``remedy``."""


def remedy(check: Check, channel: str, consumer: str) -> str:
    """Return what to do about a finding, with the names of channel and consumer if known."""
    text = typed(EXPLANATIONS[check].remedy)
    return text.replace("{channel}", channel or "{channel}").replace(
        "{client_id}", consumer or "{client_id}"
    )


class Place(NamedTuple):
    """Where a mismatch is: ids of channel and consumer, 0 for none."""

    channel_id: int = 0
    consumer_id: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """Mismatching rows that one check found for a channel and consumer."""

    check: Check
    place: Place
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
        self.off: dict[tuple[Check, Place], Discrepancy] = {}
        self.looked: Tally[str] = Tally()
        """Rows examined, by kind."""

    def note(self, check: Check, place: Place, ids: Iterable[str]) -> None:
        """Count mismatching rows; keep the first ``most_ids`` ids of each check and place."""
        for one in ids:
            found = self.off.setdefault((check, place), Discrepancy())
            found.count += 1
            if len(found.ids) < self._most_ids:
                found.ids.append(one)

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

    def miss(self, place: Place, ids: list[str]) -> None:
        """Count messages for which a consumer should have a delivery and has none."""
        self.accounts.setdefault(place.consumer_id, Account()).missing += len(ids)
        self.note(Check.MISSING, place, ids)

    @property
    def gap(self) -> int:
        """Number of mismatching rows; 0 when nothing was lost."""
        return sum(found.count for found in self.off.values())

    def by_check(self) -> dict[Check, int]:
        """Return how many rows each check found, also zero."""
        found = dict.fromkeys(Check, 0)
        for (check, _), off in self.off.items():
            found[check] += off.count
        return found
