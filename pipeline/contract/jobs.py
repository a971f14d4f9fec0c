"""List the pipeline's jobs and options, from which the broker builds forms and schedules.

A test compares the options with those of the command line.
"""

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

SUBJECT = "subject"
"""Option of an ended run: the digest of its options about a person."""
MASK = "***"
"""Shown instead of options about a person."""
HOUR, DAY = 60, 24 * 60


class OptionKind(StrEnum):
    """The type of an option's form field."""

    TEXT = "text"
    NUMBER = "number"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a job."""

    name: str
    """Name as on the command line, with underscores."""
    title: str
    help: str = ""
    kind: OptionKind = OptionKind.TEXT
    required: bool = False
    choices: tuple[str, ...] = ()
    several: bool = False
    """Whether it may be given more than once; in a form, one value per line."""
    is_private: bool = False
    """Whether it concerns a person: its value is never shown, and deleted when the run ends."""


DRY_RUN = Option("dry_run", "Dry run", "Only report; write nothing.", OptionKind.FLAG)
SINCE = Option("since", "From", "2026-11-01, 2026-11-01T08:00Z or 7d. Empty: the job's default.")
UNTIL = Option("until", "Until", "End, exclusive. Empty: now.")


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the pipeline."""

    name: str
    title: str
    summary: str
    options: tuple[Option, ...] = ()
    every_minutes: int = 0
    """Default interval; 0: runs only on request."""
    is_final: bool = False
    """Whether its effects cannot be undone; starting it then needs a confirmation."""

    @property
    def has_dry_run(self) -> bool:
        """Whether it has a dry run without effects."""
        return DRY_RUN in self.options

    @property
    def private(self) -> set[str]:
        """Names of options about a person."""
        return {option.name for option in self.options if option.is_private}

    def command_line(self, options: Mapping[str, Any]) -> list[str]:
        """Return options as on a command line, for people."""
        words = []
        for name, value in options.items():
            flag = f"--{name.replace('_', '-')}"
            if name == SUBJECT:
                words.append(f"(SHA-256 of what was asked for: {value})")
            elif name in self.private:
                words.append(f"{flag} {MASK}")
            elif value is True:
                words.append(flag)
            elif value not in (None, False, "", []):
                values = value if isinstance(value, list) else [value]
                words += [f"{flag} {shlex.quote(str(each))}" for each in values]
        return words

    def without_subject(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that an ended run keeps."""
        return without_subject(options, self.private)

    def for_audit(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options for the audit log."""
        private = self.private
        return {name: "(not kept)" if name in private else value for name, value in options.items()}


def digest(options: Mapping[str, Any], private: Iterable[str]) -> str:
    """Return the SHA-256 of options about a person, equal for equal options; '' when none is set.

    A receipt of an erasure has the same digest.
    """
    values = {name: sorted(options.get(name) or []) for name in private}
    if not any(values.values()):
        return ""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def without_subject(options: Mapping[str, Any], private: Iterable[str]) -> dict[str, Any]:
    """Return the options with a digest instead of those about a person."""
    names = set(private)
    rest = {name: value for name, value in options.items() if name not in names}
    subject = digest(options, names)
    return rest | {SUBJECT: subject} if subject else rest


def _private(name: str, title: str, help: str) -> Option:
    return Option(name, title, help, several=True, is_private=True)


_ALL = (
    Job(
        "archive",
        "Archive",
        "Moves finished messages that are old enough into the lake.",
        (DRY_RUN,),
        every_minutes=HOUR,
    ),
    Job(
        "usage",
        "Usage",
        "Counts messages, deliveries, attempts and bytes per hour.",
        (
            Option(
                "since",
                "From",
                "First hour: 2026-11-01 or 2026-11-01T08:00Z. Empty: 48 hours before the end.",
            ),
            Option("until", "Until", "End. Empty: the last whole hour."),
        ),
        every_minutes=HOUR,
    ),
    Job(
        "health",
        "Delivery health",
        "Rates success, latency, recovery and score of consumers and hosts.",
        (
            Option("day", "Day", "2026-11-01, in UTC. Empty: yesterday and today."),
            Option("objective", "Objective", "Percentage of attempts that should succeed: 99.9."),
        ),
        every_minutes=DAY,
    ),
    Job(
        "triage",
        "Triage",
        "Reports why deliveries died, and what to do about it.",
        (SINCE, UNTIL),
        every_minutes=HOUR,
    ),
    Job(
        "audit",
        "Audit",
        "Checks that every accepted message is in the lake or the tables.",
        (
            SINCE,
            UNTIL,
            Option("grace", "Grace", "Messages newer than this are skipped. Empty: 5m."),
            Option(
                "whole_since",
                "Whole since",
                "Since when rows are deleted only after they were archived. "
                "Empty: since the archive began.",
            ),
        ),
        every_minutes=DAY,
    ),
    Job(
        "forecast",
        "Forecast",
        "Estimates the load of the coming hours.",
        (
            Option("hours", "Hours", "Hours to forecast.", OptionKind.NUMBER),
            Option("weeks", "Weeks", "Weeks of history to use.", OptionKind.NUMBER),
            Option(
                "rate",
                "Rate",
                "Deliveries per second of one pump. Empty: as measured.",
                OptionKind.NUMBER,
            ),
            Option(
                "backtest",
                "Backtest",
                "Also report the error of last week's forecast.",
                OptionKind.FLAG,
            ),
        ),
        every_minutes=HOUR,
    ),
    Job(
        "replay",
        "Replay from the lake",
        "Sends messages from the lake to a consumer again, as normal deliveries.",
        (
            Option("consumer", "Consumer", "channel/client_id of the receiver.", required=True),
            SINCE,
            UNTIL,
            Option("event_type", "Event types", "Names, or order.*; one per line.", several=True),
            Option("ordering_key", "Ordering keys", "One per line.", several=True),
            Option("message", "Messages", "msg_…; one per line.", several=True),
            Option(
                "only_dead",
                "Only undelivered",
                "With deliveries, none of which succeeded.",
                OptionKind.FLAG,
            ),
            Option(
                "only_missing",
                "Only without delivery",
                "The consumer registered later.",
                OptionKind.FLAG,
            ),
            Option("rate", "Rate", "Maximum per second. Empty: no limit."),
            Option("reason", "Reason", "For the audit log."),
            DRY_RUN,
        ),
        is_final=True,
    ),
    Job(
        "erase",
        "Erase",
        "Removes a person's messages from the lake and issues a receipt.",
        (
            _private("ordering_key", "Ordering keys", "One per line."),
            _private("idempotency_key", "Idempotency keys", "One per line."),
            _private("message", "Messages", "msg_…; one per line."),
            Option("reason", "Reason", "For the receipt; nothing about the person."),
            DRY_RUN,
        ),
        is_final=True,
    ),
)
JOBS = {job.name: job for job in _ALL}
