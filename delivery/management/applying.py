"""Applying a declaration: all of it or nothing, and what that changed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.db.models import Model

from channels_app.api import recurring
from channels_app.errors import BrokerError
from channels_app.models import Channel, Consumer, EventType, Producer, Schedule
from channels_app.rules.registered import Registered
from channels_app.snapshot import load_channels
from channels_app.steps import (
    adopt_secret,
    register_channel,
    register_consumer,
    register_event_type,
    register_producer,
    register_schedule,
)
from delivery.management.declaration import Declaration, Entry, Problem

HIDDEN = "(not shown)"


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


def apply(declaration: Declaration, *, actor: str, dry_run: bool = False) -> Applied:
    """Register every entry in one transaction; any problem, or ``dry_run``, takes all of it back.

    Every entry is tried even after one was refused, so that all problems are told at once.
    """
    applied = Applied(problems=list(declaration.problems))
    refused: set[str] = set()
    try:
        with transaction.atomic():
            for entry in declaration.entries:
                _try(entry, actor, applied, refused)
            if applied.problems or dry_run:
                raise _TakeBack
    except _TakeBack:
        pass
    return applied


def _try(entry: Entry, actor: str, applied: Applied, refused: set[str]) -> None:
    try:
        applied.changes.append(_register(entry, actor))
    except BrokerError as error:
        if entry.table.name == "channels":
            refused.add(entry.key[0])
        # What stands on a refused channel is not told again for that alone.
        if error.code == "unknown_channel" and entry.key[0] in refused:
            return
        faults = [(fault.field, fault.detail) for fault in error.faults]
        for name, detail in faults or [(error.field, error.detail)]:
            applied.problems.append(Problem(entry.place(name), detail))


def _register(entry: Entry, actor: str) -> Change:
    kind = _KINDS[entry.table.name]
    found = kind.find(*entry.key)
    before = kind.describe(found) if found else {}
    registered = kind.put(*entry.key, entry.values, actor=actor)
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
