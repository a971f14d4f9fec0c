"""Queue messages that the pipeline copied from the lake, in small transactions, at a given rate.

A message is restored under its own key with its body as it was encrypted. Its delivery is new, or
the old one if the tables still have it. Everything for a row is written together and the copied row
is deleted with it, so a killed process leaves all of it or nothing.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial

from django.db.models import Exists, F, OuterRef

from channels_app import data_encryption, failpoints, transactions
from channels_app.errors import Conflict, NotFound
from channels_app.models import AuditEntry, Channel, Consumer, Message, MessageBody, new_id
from channels_app.rules import ids
from delivery.models import Delivery, Pruned, Replay, Restore, Restored, RestoredMessage
from delivery.models.accounting import EVERY_CHANNEL
from delivery.rules.principal import Principal
from delivery.steps.replay import restored_rows
from delivery.steps.replay.filters import ReplayFilter, store
from delivery.steps.replay.requeue import Pace, requeue
from delivery.steps.replay.restored_rows import Sorted

BATCH = 200
"""Rows in one transaction; each may have a body."""
HORIZON_S = 5.0
"""With a rate, rows are queued only this far ahead, so that cancelling takes effect soon."""
OPEN = (Restore.State.STAGING, Restore.State.STAGED)
GONE = "The consumer is retired: the broker sends it nothing."
SEALED = "Bodies are encrypted with keys that are no longer installed: {}."


def is_any_open() -> bool:
    """Whether any restore is unfinished."""
    return Restore.objects.filter(state__in=OPEN).exists()


def run_each(now: datetime, slot: int) -> Iterator[int]:
    """Queue rows as long as there are any; yields the number of each step."""
    moved = 1
    while moved:
        moved = 0
        open_ = Restore.objects.filter(state__in=OPEN).order_by("id")
        for restore_id in open_.values_list("id", flat=True):
            work = partial(_admit, restore_id, now, slot)
            count = transactions.run(work, on_collision=new_id.reseed)
            failpoints.reach("after_restore")
            moved += count
            yield count


def cancel(restore_id: int, principal: Principal, *, now: datetime) -> Restore:
    """Stop a restore. Deliveries that it has queued are still sent.

    Raises Conflict when it has ended, NotFound when there is none.
    """

    def write() -> Restore:
        row = Restore.objects.select_for_update().filter(id=restore_id).first()
        if row is None:
            raise NotFound("unknown_replay", "There is no such restore.")
        if row.state not in OPEN:
            raise Conflict("replay_ended", f"The restore is {row.state} already.")
        _end(row, Restore.State.CANCELLED, now, actor=principal.actor, reason=principal.reason)
        return row

    return transactions.run(write)


def forget() -> Iterator[int]:
    """Delete rows that restores leave behind; yields the number of each step.

    These are restored messages without deliveries, which the lake has, and copied rows that will
    not be queued.
    """
    ended = Restore.objects.exclude(state__in=OPEN).filter(id=OuterRef("restore_id"))
    while brought := list(
        Restored.objects.filter(Exists(ended)).values_list("id", flat=True)[:BATCH]
    ):
        yield Restored.objects.filter(id__in=brought).delete()[0]
    after = -1
    while page := list(
        RestoredMessage.objects.filter(message_id__gt=after)
        .order_by("message_id")
        .values_list("message_id", flat=True)[:BATCH]
    ):
        after = page[-1]
        yield transactions.run(partial(_forget, page))


def _forget(page: list[int]) -> int:
    # Locked first, as in retention: a backfill may be creating a delivery of one of them.
    locked = Message.objects.filter(id__in=page).order_by("id").select_for_update()
    here = set(locked.values_list("id", flat=True))
    wanted = set(Delivery.objects.filter(message_id__in=page).values_list("message_id", flat=True))
    gone = sorted(here - wanted)
    if gone:
        Pruned.note(EVERY_CHANNEL, gone[-1])
        MessageBody.objects.filter(message_id__in=gone).delete()
        messages = Message.objects.filter(id__in=gone)
        messages._raw_delete(messages.db)
    left = [key for key in page if key not in here or key not in wanted]
    RestoredMessage.objects.filter(message_id__in=left).delete()
    return len(gone)


def _admit(restore_id: int, now: datetime, slot: int) -> int:
    rows = Restore.objects.select_for_update(skip_locked=True)
    restore = rows.filter(id=restore_id, state__in=OPEN).first()
    if restore is None:
        return 0
    consumer = Consumer.objects.filter(id=restore.consumer_id).exclude(state="retired").first()
    unknown = [key for key in restore.key_ids if not data_encryption.knows_key(key)]
    if consumer is None or unknown:
        error = GONE if consumer is None else SEALED.format(", ".join(unknown))
        _end(restore, Restore.State.REFUSED, now, error=error)
        return 0
    pace = Pace(max(now, restore.next_due_at or now), restore.rate_per_second)
    brought = Restored.objects.filter(restore_id=restore.id).order_by("message_id")
    some = list(brought[: min(BATCH, _places(pace, now))])
    if not some:
        if restore.state == Restore.State.STAGED and not brought.exists():
            _end(restore, Restore.State.FINISHED, now)
        return 0
    _begin(restore, consumer, now)
    found = restored_rows.sort(some, consumer, now)
    restored_rows.messages(found.missing, consumer)
    keys = restored_rows.deliveries(found.new, consumer, restore, pace, slot)
    requeued = requeue(
        found.finished,
        states=restored_rows.DONE,
        replay_id=restore.replay_id or 0,
        pace=pace,
        first_place=len(keys),
        slot=slot,
    )
    Restored.objects.filter(id__in=[row.id for row in some]).delete()
    _keep(restore, found, keys, requeued, len(some), pace, now)
    failpoints.reach("in_restore")
    return len(some)


def _places(pace: Pace, now: datetime) -> int:
    """Return how many rows the rate permits to be queued now."""
    if not pace.rate_per_second:
        return BATCH
    seconds = (now + timedelta(seconds=HORIZON_S) - pace.start).total_seconds()
    return max(0, int(seconds * pace.rate_per_second) + 1) if seconds >= 0 else 0


def _begin(restore: Restore, consumer: Consumer, now: datetime) -> None:
    """Create a Replay, by which people find the deliveries, and record who requested it."""
    if restore.replay_id is not None:
        return
    slug = Channel.objects.values_list("slug", flat=True).get(id=consumer.channel_id)
    wanted = ReplayFilter(kind="missing", channel=slug, consumer=consumer.client_id)
    replay = Replay.objects.create(
        id=new_id(),
        state=Replay.State.FINISHED,
        filter=store(wanted),
        consumer_ids=[consumer.id],
        consumer_index=1,
        rate_per_second=restore.rate_per_second,
        reason=restore.reason,
        requested_by=restore.requested_by,
        team_id=consumer.team_id,
        matched_count=restore.matched_count,
        upper_id=0,
        next_due_at=now,
        created_at=now,
        finished_at=now,
    )
    restore.replay_id = replay.id
    AuditEntry.record(
        restore.requested_by,
        "replay.restore",
        f"replay:{replay}",
        team_id=consumer.team_id,
        reason=restore.reason,
        after={"restore": restore.id, "matched": restore.matched_count, **restore.options},
    )


def _keep(
    restore: Restore,
    found: Sorted,
    keys: list[int],
    requeued: int,
    taken: int,
    pace: Pace,
    now: datetime,
) -> None:
    queued = len(keys) + requeued
    restore.queued_count += queued
    restore.skipped_count += taken - queued
    restore.next_due_at = pace.after(queued)
    if keys:
        messages = [row.message_id for row in found.new]
        restore.first_key = min(keys) if not restore.first_key else min(restore.first_key, *keys)
        restore.last_key = max(restore.last_key, *keys)
        restore.low = min(messages) if not restore.low else min(restore.low, *messages)
        restore.high = max(restore.high, *messages)
    # The pipeline writes the other columns.
    restore.save(
        update_fields=[
            *("queued_count", "skipped_count", "next_due_at", "replay_id"),
            *("first_key", "last_key", "low", "high"),
        ]
    )
    Replay.objects.filter(id=restore.replay_id or 0).update(
        replayed_count=restore.queued_count, finished_at=now, version=F("version") + 1
    )


def _end(
    restore: Restore,
    state: str,
    now: datetime,
    *,
    error: str = "",
    actor: str = "broker",
    reason: str = "",
) -> None:
    restore.state, restore.finished_at, restore.error = state, now, error
    restore.save(update_fields=["state", "finished_at", "error"])
    if restore.replay_id is None and state == Restore.State.FINISHED:
        return
    target = f"restore:{restore.id}"
    if restore.replay_id is not None:
        target = f"replay:{ids.to_public(ids.REPLAY, restore.replay_id)}"
    AuditEntry.record(
        actor,
        f"replay.{state}",
        target,
        reason=reason or error,
        after={"queued": restore.queued_count, "left_out": restore.skipped_count},
    )
