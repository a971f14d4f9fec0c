"""Applying a declaration: all of it or nothing, and what that changed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from django.db import transaction
from django.db.models import Model

from channels_app.api import recurring
from channels_app.errors import BrokerError
from channels_app.models import Channel, Consumer, EventType, Producer, Schedule, Team
from channels_app.rules.registered import Registered
from channels_app.snapshot import load_channels
from channels_app.steps import (
    adopt_secret,
    register_channel,
    register_consumer,
    register_event_type,
    register_producer,
    register_schedule,
    register_team,
)
from delivery.management.declaration import Declaration, Entry, Problem

HIDDEN = "(not shown)"
AT_ONCE = 500
"""Entries of a table that are registered between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one entry."""

    entry: Entry
    mark: str
    """``+`` created, ``~`` changed, ``=`` was so already."""
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Before and after of what differs; for a new entry, of what is not the default."""
    secret: str = field(default="", repr=False)
    """A new consumer's signing secret, where the broker made it."""


@dataclass(slots=True)
class Applied:
    """What a declaration did, or why it did nothing."""

    changes: list[Change] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


class _TakeBack(Exception):
    """Ends the transaction without its changes."""


def apply(
    declaration: Declaration,
    *,
    actor: str,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Applied:
    """Register every entry in one transaction; any problem, or ``dry_run``, takes all of it back.

    Every entry is tried even after one was refused, so that all problems are told at once.
    ``progress`` hears how many of how many entries were tried, some hundreds at a time.
    """
    applied = Applied(problems=list(declaration.problems))
    refused: set[str] = set()
    done, total = 0, len(declaration.entries)
    try:
        with transaction.atomic():
            for some in _groups(declaration.entries):
                for entry, outcome in zip(some, _register_all(some, actor), strict=True):
                    _note(entry, outcome, applied, refused)
                done += len(some)
                progress(done, total)
            if applied.problems or dry_run:
                raise _TakeBack
    except _TakeBack:
        pass
    return applied


def _groups(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Entries of one table each, in order, up to `AT_ONCE`."""
    for _, alike in groupby(entries, key=lambda entry: entry.table.name):
        rest = list(alike)
        for start in range(0, len(rest), AT_ONCE):
            yield rest[start : start + AT_ONCE]


def _note(entry: Entry, outcome: Change | BrokerError, applied: Applied, refused: set[str]) -> None:
    if isinstance(outcome, Change):
        applied.changes.append(outcome)
        return
    if entry.table.name == "channels":
        refused.add(entry.key[0])
    # What stands on a refused channel is not told again for that alone.
    if outcome.code == "unknown_channel" and entry.key[0] in refused:
        return
    faults = [(fault.field, fault.detail) for fault in outcome.faults]
    for name, detail in faults or [(outcome.field, outcome.detail)]:
        applied.problems.append(Problem(entry.place(name), detail))


def _register_all(entries: Sequence[Entry], actor: str) -> list[Change | BrokerError]:
    """What became of each; consumers, of which there may be thousands, a few statements at once."""
    kind = _KINDS[entries[0].table.name]
    found: list[Change | BrokerError] = []
    if entries[0].table.name != "consumers":
        for entry in entries:
            try:
                row = kind.find(*entry.key)
                before = kind.describe(row) if row else {}
                done = kind.put(*entry.key, entry.values, actor=actor)
                found.append(_change(entry, actor, before, done))
            except BrokerError as refused:
                found.append(refused)
        return found
    rows = Consumer.objects.filter(
        channel__slug__in={entry.key[0] for entry in entries},
        client_id__in=[entry.key[1] for entry in entries],
    ).prefetch_related("channel", "team")
    known = {(row.channel.slug, row.client_id): kind.describe(row) for row in rows}
    keys = [(entry.key[0], entry.key[1]) for entry in entries]
    wanted = [(*key, entry.values) for key, entry in zip(keys, entries, strict=True)]
    outcomes = register_consumer.put_all(wanted, actor=actor)
    for key, entry, outcome in zip(keys, entries, outcomes, strict=True):
        if isinstance(outcome, BrokerError):
            found.append(outcome)
            continue
        try:
            found.append(_change(entry, actor, known.get(key, {}), outcome))
        except BrokerError as refused:
            found.append(refused)
    return found


def _change(
    entry: Entry, actor: str, before: Mapping[str, Any], registered: Registered[Any]
) -> Change:
    """What a registration changed. Adopts the entry's secret, and may be refused for that."""
    kind = _KINDS[entry.table.name]
    changed, secret = registered.changed, next(iter(registered.secrets), "")
    base = kind.describe(kind.blank()) if registered.created else before
    fields = _differing(base, kind.describe(registered.row))
    if changed and not registered.created and not fields:
        # Their values are masked, so a new value looks like the old one.
        fields[kind.masked] = (HIDDEN, HIDDEN)
    if entry.secret:
        channel, client_id = entry.key
        adopted = adopt_secret.adopt(
            channel,
            client_id,
            entry.secret,
            actor=actor,
            overlap_s=0 if registered.created else adopt_secret.OVERLAP_S,
        )
        changed, secret = changed or adopted.changed, ""
        if adopted.changed and not registered.created:
            fields["secret"] = (HIDDEN, HIDDEN)
    mark = "+" if registered.created else "~" if changed else "="
    return Change(entry, mark, fields, secret)


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        name: (before.get(name), value)
        for name, value in after.items()
        if before.get(name) != value
    }


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one table's entries are registered."""

    put: Callable[..., Registered[Any]]
    describe: Callable[[Any], Mapping[str, Any]]
    find: Callable[..., Model | None]
    blank: type[Model]
    masked: str = "headers"
    """The field whose values are not described."""


def _put_schedule(
    channel: str, name: str, values: Mapping[str, Any], *, actor: str
) -> Registered[Schedule]:
    # Of this transaction, in which the channel may have been made.
    view = load_channels(slug=channel).get(channel)
    return recurring.put_here(register_schedule.Order(channel, name, actor), values, view=view)


_KINDS = {
    "teams": _Kind(
        register_team.put,
        register_team.describe,
        lambda slug: Team.objects.filter(slug=slug).first(),
        Team,
    ),
    "channels": _Kind(
        register_channel.put,
        register_channel.describe,
        lambda slug: Channel.objects.filter(slug=slug).first(),
        Channel,
    ),
    "event_types": _Kind(
        register_event_type.put,
        register_event_type.describe,
        lambda channel, name: EventType.objects.filter(channel__slug=channel, name=name).first(),
        EventType,
    ),
    "producers": _Kind(
        register_producer.put,
        register_producer.describe,
        lambda slug: Producer.objects.filter(slug=slug).first(),
        Producer,
    ),
    "consumers": _Kind(
        register_consumer.put,
        register_consumer.describe,
        lambda channel, name: Consumer.objects.filter(
            channel__slug=channel, client_id=name
        ).first(),
        Consumer,
    ),
    "schedules": _Kind(
        _put_schedule,
        register_schedule.describe,
        lambda channel, name: Schedule.objects.filter(channel__slug=channel, name=name).first(),
        Schedule,
        masked="body",
    ),
}
