"""Apply a declaration completely or not at all, and report the changes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeAlias

from django.db import transaction
from django.db.models import Model

from channels_app.access.principal import Principal
from channels_app.core.errors import BrokerError, Invalid
from channels_app.ingest import recurring
from channels_app.models import Channel, Consumer, EventType, Producer, Schedule, Team
from channels_app.registry import (
    channels,
    consumers,
    event_types,
    producers,
    schedules,
    secrets,
    teams,
)
from channels_app.registry.resource import WriteResult
from channels_app.registry.snapshot import load_channels
from channels_app.serializers.channels import ChannelSerializer
from channels_app.serializers.event_types import EventTypeSerializer
from channels_app.serializers.producers import ProducerSerializer
from channels_app.serializers.schedules import ScheduleSerializer
from channels_app.serializers.teams import TeamSerializer
from delivery.management.declaration import Declaration, Entry, Problem

_Key: TypeAlias = tuple[str, str]
"""Channel and client id."""
_Put: TypeAlias = Callable[..., WriteResult[Any]]
"""Registers an entry: takes the parts of its key, its values, and ``principal``."""
HIDDEN = "(not shown)"
BATCH_SIZE = 500
"""Entries of a table that are registered between two progress reports."""
_PUTS: dict[str, _Put] = {
    "teams": teams.put,
    "channels": channels.put,
    "event_types": event_types.put,
    "producers": producers.put,
}
"""By table: the function that registers one entry."""


@dataclass(frozen=True, slots=True)
class EntryChange:
    """The change of one entry."""

    entry: Entry
    mark: str
    """``+`` created, ``~`` changed, ``=`` unchanged."""
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Former and new value of each changed field; for a new entry, of fields that differ from
    the default."""
    secret: str = field(default="", repr=False)
    """A new consumer's signing secret, if the broker generated it."""


@dataclass(slots=True)
class Applied:
    """The changes of a declaration, or the problems that prevented them."""

    changes: list[EntryChange] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


class _Rollback(Exception):
    """Rolls back the transaction."""


def apply(
    declaration: Declaration,
    *,
    principal: Principal,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Applied:
    """Register every entry in one transaction; any problem, or ``dry_run``, rolls it back.

    Every entry is tried even after one was refused, so that all problems are reported at once.
    ``progress`` is called with the numbers of tried and of all entries, every few hundred entries.
    """
    applied = Applied(problems=list(declaration.problems))
    refused: set[str] = set()
    done, total = 0, len(declaration.entries)
    try:
        with transaction.atomic():
            for group in _groups(declaration.entries):
                for entry, outcome in zip(group, _register_all(group, principal), strict=True):
                    _note(entry, outcome, applied, refused)
                done += len(group)
                progress(done, total)
            if applied.problems or dry_run:
                raise _Rollback
    except _Rollback:
        pass
    return applied


@dataclass(frozen=True, slots=True)
class _Kind:
    """Model and fields of one table's entries."""

    model: type[Model]
    describe: Callable[[Any], Mapping[str, Any]]
    masked: str = "headers"
    """The field whose values are masked."""


_KINDS = {
    "teams": _Kind(Team, TeamSerializer.describe),
    "channels": _Kind(Channel, ChannelSerializer.describe),
    "event_types": _Kind(EventType, EventTypeSerializer.describe),
    "producers": _Kind(Producer, ProducerSerializer.describe),
    "consumers": _Kind(Consumer, consumers.describe),
    "schedules": _Kind(Schedule, ScheduleSerializer.describe, masked="body"),
}


def _groups(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yield entries in order, in groups of one table and up to `BATCH_SIZE`."""
    for _, alike in groupby(entries, key=lambda entry: entry.table.name):
        rest = list(alike)
        for start in range(0, len(rest), BATCH_SIZE):
            yield rest[start : start + BATCH_SIZE]


def _register_all(
    entries: Sequence[Entry], principal: Principal
) -> list[EntryChange | BrokerError]:
    """Return the change or error of each entry; consumers are written in bulk."""
    name = entries[0].table.name
    if name == "consumers":
        return _register_consumers(entries, principal)
    kind = _KINDS[name]
    put = _schedule_put(entries) if name == "schedules" else _PUTS[name]
    blank = kind.describe(kind.model())
    results: list[EntryChange | BrokerError] = []
    for entry in entries:
        try:
            row = _find(kind.model, entry)
            before = kind.describe(row) if row else {}
            done = put(*entry.key, entry.values, principal=principal)
        except BrokerError as refused:
            results.append(refused)
        else:
            results.append(_change(entry, done, blank if done.created else before))
    return results


def _register_consumers(
    entries: Sequence[Entry], principal: Principal
) -> list[EntryChange | BrokerError]:
    kind = _KINDS["consumers"]
    keys = [(entry.key[0], entry.key[1]) for entry in entries]
    rows = Consumer.objects.filter(
        channel__slug__in={channel for channel, _ in keys},
        client_id__in=[client_id for _, client_id in keys],
    ).prefetch_related("channel", "team", "dead_letter_channel")
    described = {(row.channel.slug, row.client_id): kind.describe(row) for row in rows}
    chosen: dict[_Key, bytes] = {}
    refused: dict[_Key, BrokerError] = {}
    for key, entry in zip(keys, entries, strict=True):
        try:
            if entry.secret:
                chosen[key] = secrets.read(entry.secret)
        except Invalid as error:
            refused[key] = error
    outcomes = consumers.put_all(
        [
            consumers.Registration(*key, entry.values, chosen.get(key))
            for key, entry in zip(keys, entries, strict=True)
        ],
        principal=principal,
    )
    adopted = _adopt_all(chosen, zip(keys, outcomes, strict=True), principal)
    blank = kind.describe(kind.model())
    results: list[EntryChange | BrokerError] = []
    for key, entry, outcome in zip(keys, entries, outcomes, strict=True):
        secret = refused.get(key) or adopted.get(key)
        if isinstance(outcome, BrokerError):
            results.append(outcome)
        elif isinstance(secret, BrokerError):
            results.append(secret)
        else:
            before = blank if outcome.created else described.get(key, {})
            results.append(_change(entry, outcome, before, secret))
    return results


def _adopt_all(
    chosen: Mapping[_Key, bytes],
    outcomes: Iterable[tuple[_Key, WriteResult[Consumer] | BrokerError]],
    principal: Principal,
) -> dict[_Key, WriteResult[Consumer] | BrokerError]:
    """Make existing consumers sign with the secrets from the file."""
    adoptions = [
        secrets.Adoption(*key, chosen[key])
        for key, outcome in outcomes
        if key in chosen and isinstance(outcome, WriteResult) and not outcome.created
    ]
    done = secrets.adopt_all(adoptions, principal=principal)
    return {
        (adoption.channel, adoption.client_id): result
        for adoption, result in zip(adoptions, done, strict=True)
    }


def _change(
    entry: Entry,
    registered: WriteResult[Any],
    before: Mapping[str, Any],
    adopted: WriteResult[Any] | None = None,
) -> EntryChange:
    """Return the change of a registration; ``before`` are the defaults if it created the row."""
    kind = _KINDS[entry.table.name]
    changed, secret = registered.changed, next(iter(registered.secrets), "")
    fields = _differing(before, kind.describe(registered.row))
    if changed and not registered.created and not fields:
        # Values are masked, so a changed value looks unchanged.
        fields[kind.masked] = (HIDDEN, HIDDEN)
    if adopted is not None and adopted.changed:
        changed = True
        fields["secret"] = (HIDDEN, HIDDEN)
    mark = "+" if registered.created else "~" if changed else "="
    return EntryChange(entry, mark, fields, secret)


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        name: (before.get(name), value)
        for name, value in after.items()
        if before.get(name) != value
    }


def _schedule_put(entries: Sequence[Entry]) -> _Put:
    """Return a function that registers these schedules."""
    # Read in this transaction, which may have created the channels.
    channels = load_channels({entry.key[0] for entry in entries})

    def put(
        channel: str, name: str, values: Mapping[str, Any], *, principal: Principal
    ) -> WriteResult[Schedule]:
        order = schedules.Order(channel, name, principal)
        return recurring.put(order, values, channel=channels.get(channel))

    return put


def _find(model: type[Model], entry: Entry) -> Model | None:
    lookups = {"channel": "channel__slug"}
    names = [lookups.get(name, name) for name in entry.table.keys]
    rows = model._default_manager.filter(**dict(zip(names, entry.key, strict=True)))
    return rows.first()


def _note(
    entry: Entry, outcome: EntryChange | BrokerError, applied: Applied, refused: set[str]
) -> None:
    if isinstance(outcome, EntryChange):
        applied.changes.append(outcome)
        return
    if entry.table.name == "channels":
        refused.add(entry.key[0])
    # Do not report entries again whose only problem is that their channel was refused.
    if outcome.code == "unknown_channel" and entry.key[0] in refused:
        return
    faults = [(fault.field, fault.detail) for fault in outcome.faults]
    for name, detail in faults or [(outcome.field, outcome.detail)]:
        applied.problems.append(Problem(entry.place(name), detail))
