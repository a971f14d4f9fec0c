"""Delete archived rows part by part, after the archive was read back and verified.

A segment stores checksums of each part's rows. The rows are locked, compared with these and deleted
only if they agree. If a replay removed a row meanwhile, or a row was added, the whole part stays:
the archive then corrects its files, and the part is deleted later.
"""

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet

from channels_app.core import ids
from channels_app.database import clock, raw, transactions
from channels_app.models import Channel, Message, MessageBody
from delivery.core.lifecycle import DeliveryState
from delivery.models import (
    Attempt,
    Counter,
    Delivery,
    PipelineRun,
    RestoredMessage,
    RetentionMark,
    Segment,
)
from delivery.models.counter import MADE
from delivery.models.reconciliation import EVERY_CHANNEL

PRIME = 2_147_483_647
"""Keys are summed modulo this prime, as the archive does."""
READING = timedelta(seconds=30)
"""A run without a heartbeat for this long no longer reads anything."""
WRITER = "archive"
"""The job that reads neither the files nor the rows of a segment that is being deleted."""
DONE = (DeliveryState.DELIVERED.value, DeliveryState.CANCELLED.value)


class _Differs(Exception):
    """The rows differ from those in the archive."""


class _ReadersActive(Exception):
    """A run that reads lake and tables together has begun."""


@dataclass(frozen=True, slots=True)
class _DeletedRows:
    """What a segment stores about rows that are deleted together."""

    last: int
    rows: int
    keys: int
    versions: int
    attempts: int


def prune(slot: int) -> Iterator[int]:
    """Delete rows that are archived and verified; yield the number of rows of each part.

    Stops while a job reads lake and tables together: a row must not move from one to the other
    between its queries.
    """
    while not _readers_active():
        segment_id = _next()
        if segment_id is None:
            return
        try:
            yield _step(segment_id, slot)
        except _ReadersActive:
            return
        raw.dialect.checkpoint()  # so that the next part reuses the log (database/slices.py)


def _next() -> int | None:
    """Return the oldest segment to delete; messages first, which have fewer segments."""
    for kind in (Segment.Kind.MESSAGES, Segment.Kind.DELIVERIES):
        states = [Segment.State.PRUNING, Segment.State.VERIFIED]
        rows = Segment.objects.filter(kind=kind, state__in=states).order_by("id")
        if (segment_id := rows.values_list("id", flat=True).first()) is not None:
            return segment_id
    return None


def _step(segment_id: int, slot: int) -> int:
    try:
        return transactions.run(lambda: _delete_part(segment_id, slot))
    except _Differs:
        return transactions.run(lambda: _pass_by(segment_id))


def _delete_part(segment_id: int, slot: int) -> int:
    """Delete the next part, or finish the segment. Raises _Differs and _ReadersActive."""
    segment = _locked(segment_id)
    part = _part(segment) if segment else None
    if segment is None or part is None:
        return 0
    if segment.kind == Segment.Kind.DELIVERIES:
        _delete_deliveries(segment, part, slot)
    else:
        _delete_messages(segment, part)
    _advance(segment, part, part.rows)
    # Checked last: a job that began while the rows were locked must find them unchanged.
    if _readers_active():
        raise _ReadersActive
    return part.rows


def _pass_by(segment_id: int) -> int:
    segment = _locked(segment_id)
    part = _part(segment) if segment else None
    if segment and part:
        _advance(segment, part, 0)
    return 0


def _locked(segment_id: int) -> Segment | None:
    """Lock and return the segment; None if it must no longer be deleted."""
    states = [Segment.State.PRUNING, Segment.State.VERIFIED]
    rows = Segment.objects.filter(id=segment_id, state__in=states)
    return rows.select_for_update().first()


def _part(segment: Segment) -> _DeletedRows | None:
    """Return the first part behind the cursor; without one, finish the segment."""
    for row in segment.parts:
        if row[0] > segment.cursor:
            return _DeletedRows(*row)
    _end(segment)
    return None


def _advance(segment: Segment, part: _DeletedRows, deleted: int) -> None:
    segment.state = Segment.State.PRUNING
    segment.cursor = part.last
    segment.deleted_count += deleted
    if part.last == segment.parts[-1][0]:
        _end(segment)
    else:
        segment.save(update_fields=["state", "cursor", "deleted_count"])


def _end(segment: Segment) -> None:
    """Mark the segment as pruned, or for correction if some of its rows are left."""
    if segment.deleted_count == segment.row_count:
        segment.state, segment.parts = Segment.State.PRUNED, []
        segment.pruned_at = clock.now()
    else:
        segment.state = Segment.State.AMENDING
    segment.save(update_fields=["state", "cursor", "deleted_count", "parts", "pruned_at"])


def _delete_deliveries(segment: Segment, part: _DeletedRows, slot: int) -> None:
    eligible = _eligible(segment, _finished)
    rows = Delivery.objects.filter(
        eligible, id__gte=max(segment.low, segment.cursor + 1), id__lte=part.last
    )
    keys = list(rows.order_by("id").values_list("id", flat=True)[: part.rows + 1])
    # Checked again under their locks: a replay may have queued some of them meanwhile.
    rows = Delivery.objects.filter(eligible, id__in=keys).order_by("id").select_for_update()
    locked = list(
        rows.values_list("id", "version", "consumer_id", "state", "channel_id", "message_id")
    )
    _compare(part, [(row[0], row[1]) for row in locked])
    _note(locked)
    gone = raw.listed(keys)
    attempts = raw.execute(f"DELETE FROM {Attempt._meta.db_table} WHERE delivery_id IN ({gone})")
    if attempts != part.attempts:
        raise _Differs
    raw.execute(f"DELETE FROM {Delivery._meta.db_table} WHERE id IN ({gone})")
    change: Tally[tuple[int, str]] = Tally()
    for _, _, consumer_id, state, _, _ in locked:
        change[consumer_id, state] -= 1
        change[consumer_id, MADE] -= 1
    Counter.add(change, slot)


def _note(locked: list[tuple[int, int, int, str, int, int]]) -> None:
    """Mark rows as deleted for reconciliation, and messages to examine again for retention."""
    messages: dict[int, list[int]] = {}
    for _, _, _, _, channel_id, message_id in locked:
        messages.setdefault(channel_id, []).append(message_id)
    RetentionMark.note_each({channel_id: max(ids) for channel_id, ids in messages.items()})
    # These messages wait for the archive. If it is removed, retention must find them.
    first = min(map(min, messages.values()))
    behind = Channel.objects.filter(id__in=messages, pruned_to__gte=first)
    behind.update(pruned_to=first - 1)


def _delete_messages(segment: Segment, part: _DeletedRows) -> None:
    unwanted = ~Exists(Delivery.objects.filter(message_id=OuterRef("id")))
    # A restored message is in the lake already, and is deleted elsewhere (replay).
    here_alone = ~Exists(RestoredMessage.objects.filter(message_id=OuterRef("id")))
    eligible = _eligible(segment, _accepted) & ~Q(state=Message.State.ACCEPTED)
    rows = Message.objects.filter(
        eligible,
        unwanted,
        here_alone,
        id__gte=max(segment.low, segment.cursor + 1),
        id__lte=part.last,
    )
    keys = list(rows.order_by("id").values_list("id", flat=True)[: part.rows + 1])
    # Locked first, which keeps a backfill from creating a delivery of them; then checked again.
    locked = Message.objects.filter(id__in=keys).order_by("id").select_for_update()
    list(locked.values_list("id", flat=True))
    deletable: QuerySet[Message] = Message.objects.filter(
        eligible, unwanted, here_alone, id__in=keys
    ).order_by("id")
    _compare(part, list(deletable.values_list("id", "version")))
    RetentionMark.note(EVERY_CHANNEL, max(keys))
    gone = raw.listed(keys)
    raw.execute(f"DELETE FROM {MessageBody._meta.db_table} WHERE message_id IN ({gone})")
    raw.execute(f"DELETE FROM {Message._meta.db_table} WHERE id IN ({gone})")


def _compare(part: _DeletedRows, rows: list[tuple[int, int]]) -> None:
    keys = sum(key % PRIME for key, _ in rows)
    versions = sum(version for _, version in rows)
    if (len(rows), keys, versions) != (part.rows, part.keys, part.versions):
        raise _Differs


def _eligible(segment: Segment, condition: Any) -> Q:
    """Return the condition for a segment's rows, as pipeline/lake/eligible.py has it in SQL."""
    limits: dict[str, Any] = segment.cutoffs
    own: Mapping[str, Mapping[str, str]] = limits["channels"]
    groups: dict[tuple[str, str], list[int]] = {}
    for key, ends in own.items():
        groups.setdefault((ends["finished"], ends["dead"]), []).append(int(key))
    eligible: Q = condition(limits["finished"], limits["dead"])
    if own:
        eligible &= ~Q(channel_id__in=[int(key) for key in own])
    for (finished, dead), keys in groups.items():
        eligible |= condition(finished, dead) & Q(channel_id__in=keys)
    return eligible


def _finished(finished: str, dead: str) -> Q:
    return Q(state__in=DONE, finished_at__lt=datetime.fromisoformat(finished)) | Q(
        state=DeliveryState.DEAD.value, finished_at__lt=datetime.fromisoformat(dead)
    )


def _accepted(finished: str, dead: str) -> Q:
    at = datetime.fromisoformat(finished)
    return Q(id__lt=ids.id_at(at))


def _readers_active() -> bool:
    since = clock.now() - READING
    running = PipelineRun.objects.filter(state=PipelineRun.State.RUNNING, heartbeat_at__gt=since)
    return running.exclude(job=WRITER).exists()
