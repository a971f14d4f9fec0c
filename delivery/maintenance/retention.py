"""Delete finished rows past their retention, in steps that do not disturb delivery.

No row is examined repeatedly. A message is examined once when it is old enough, and again only when
a delivery of it was deleted. Messages that a dead letter or a paused consumer still needs cost
nothing until then.
"""

from collections import Counter as Tally
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from random import sample

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import connection
from django.db.models import Exists, OuterRef, QuerySet, Subquery

from channels_app.conf import conf
from channels_app.core import ids
from channels_app.database import slices, transactions
from channels_app.database.raw import by_index
from channels_app.models import Channel, Consumer, IdempotencyRecord, Message, MessageBody
from delivery.core.lifecycle import DeliveryState
from delivery.models import Attempt, Counter, Delivery, Notification, Replay, RetentionMark
from delivery.models.counter import MADE
from delivery.models.reconciliation import EVERY_CHANNEL

BATCH = 500
"""Rows read at once, and at most deleted in one transaction (database/slices.py)."""
NOTIFICATION_RETENTION = timedelta(days=400)
"""Keeps last year's notifications."""
CONSUMERS = 500
"""Consumers per query for their oldest rows."""


def delete_idempotency_keys(now: datetime) -> Iterator[int]:
    """Delete idempotency records whose window closed; yields the number of each step."""
    while lapsed := list(
        IdempotencyRecord.objects.filter(expires_at__lte=now)
        .order_by("expires_at")
        .values_list("digest", flat=True)[:BATCH]
    ):
        IdempotencyRecord.objects.filter(digest__in=lapsed, expires_at__lte=now).delete()
        yield len(lapsed)


def delete_notifications(now: datetime) -> Iterator[int]:
    """Delete old notifications; yields the number of each step."""
    cutoff = now - NOTIFICATION_RETENTION
    while True:
        oldest = Notification.objects.order_by("id").values_list("id", "at")[:BATCH]
        old = [number for number, at in oldest if at < cutoff]
        if not old:
            return
        Notification.objects.filter(id__in=old).delete()
        yield len(old)


def delete_sessions(now: datetime) -> Iterator[int]:
    """Delete expired sessions; yields the number of each step."""
    while lapsed := list(
        Session.objects.filter(expire_date__lt=now)
        .order_by("expire_date")
        .values_list("session_key", flat=True)[:BATCH]
    ):
        Session.objects.filter(session_key__in=lapsed, expire_date__lt=now).delete()
        yield len(lapsed)


def delete_sign_in_attempts(now: datetime) -> int:
    """Delete expired counts of sign-in attempts.

    Each write counts the cache's rows (Django's culling), so only unexpired rows should remain.
    """
    table = connection.ops.quote_name(settings.TRIES_TABLE)
    before = connection.ops.adapt_datetimefield_value(now.replace(microsecond=0))
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table} WHERE expires < %s", [before])
        return int(cursor.rowcount)


def prune(now: datetime, slot: int) -> Iterator[int]:
    """Delete deliveries past their channel's retention, and messages that have none left.

    Finished deliveries are deleted after ``retention_days``, dead ones after
    ``dead_retention_days``; waiting ones never. Yields the number of rows that each step deleted.
    Not used with a lake: then rows are deleted once they are archived (maintenance/archived).
    """
    channels = list(Channel.objects.all())
    # In random order: a run may be interrupted before the last channel, and start again.
    for channel in sample(channels, len(channels)):
        cutoffs = _Cutoffs(channel, now)
        yield from _deliveries(channel.id, cutoffs, slot)
        yield from _messages(channel, cutoffs)


class _Cutoffs:
    """The times before which a channel's rows are old enough."""

    def __init__(self, channel: Channel, now: datetime) -> None:
        self.channel_id = channel.id
        days = channel.retention_days or conf().retention_days
        dead_days = channel.dead_retention_days or conf().dead_retention_days
        self.finished = now - timedelta(days=days)
        self.states = {
            DeliveryState.DELIVERED.value: self.finished,
            DeliveryState.CANCELLED.value: self.finished,
            DeliveryState.DEAD.value: now - timedelta(days=dead_days),
        }


def delete_replays(now: datetime) -> Iterator[int]:
    """Delete old finished replays, after the longer of the installation's two retention periods."""
    cutoff = now - timedelta(days=max(conf().retention_days, conf().dead_retention_days))
    old = Replay.objects.filter(id__lt=ids.id_at(cutoff), finished_at__lt=cutoff)
    while gone := list(old.order_by("id").values_list("id", flat=True)[:BATCH]):
        Replay.objects.filter(id__in=gone).delete()
        yield len(gone)


def _deliveries(channel_id: int, cutoffs: _Cutoffs, slot: int) -> Iterator[int]:
    """Delete step by step for all consumers and states whose oldest row is old enough."""
    everyone = list(Consumer.objects.filter(channel_id=channel_id).values_list("id", flat=True))
    oldest = {f"oldest_{state}": _oldest(state) for state in cutoffs.states}
    for start in range(0, len(everyone), CONSUMERS):
        consumers = Consumer.objects.filter(id__in=everyone[start : start + CONSUMERS])
        page = list(consumers.annotate(**oldest).values("id", *oldest))
        yield 0
        for consumer in page:
            for state, cutoff in cutoffs.states.items():
                first = consumer[f"oldest_{state}"]
                if first is not None and first < ids.id_at(cutoff):
                    yield from _of_consumer(consumer["id"], state, cutoffs, slot)


def _oldest(state: str) -> Subquery:
    # MIN would make MariaDB read the whole range of each consumer. MySQL would read it to sort by
    # the id alone, and MariaDB to sort by the state, too. This order is the index's for both.
    rows = Delivery.objects.filter(consumer_id=OuterRef("id"), state=state)
    return Subquery(rows.order_by("consumer_id", "id").values("id")[:1])


def _of_consumer(consumer_id: int, state: str, cutoffs: _Cutoffs, slot: int) -> Iterator[int]:
    cutoff = cutoffs.states[state]
    after, more = 0, True
    while more:
        # Keys are time-ordered, and the index serves a bound on the key. Some of these rows may
        # have finished later; they are skipped.
        rows = Delivery.objects.filter(
            consumer_id=consumer_id, state=state, id__gt=after, id__lt=ids.id_at(cutoff)
        )
        page = list(
            by_index(rows, "delivery_list")
            .order_by("id")
            .values_list("id", "message_id", "finished_at")[:BATCH]
        )
        more = len(page) == BATCH
        after = page[-1][0] if page else after
        eligible = {row[0]: row[1] for row in page if row[2] and row[2] < cutoff}
        old = {key for key in eligible.values() if key < ids.id_at(cutoffs.finished)}
        if not eligible:
            yield 0
            continue
        RetentionMark.note(cutoffs.channel_id, max(eligible.values()))
        for part in slices.cut(_sizes(eligible, old)):
            messages = [key for key in map(eligible.__getitem__, part) if key in old]
            yield transactions.run(partial(_delete, consumer_id, state, part, messages, slot))


def _sizes(eligible: dict[int, int], old: set[int]) -> list[tuple[int, int]]:
    """The bytes that may be deleted with each delivery: responses, and the message's body."""
    responses = Attempt.stored_bytes(eligible)
    bodies = dict(Message.objects.filter(id__in=old).values_list("id", "body_bytes"))
    return [
        (key, responses.get(key, 0) + bodies.get(message_id, 0))
        for key, message_id in eligible.items()
    ]


def _delete(
    consumer_id: int, state: str, eligible: list[int], old_messages: list[int], slot: int
) -> int:
    """Delete deliveries and messages that have none left; return how many rows.

    Locks messages first, as every step does that changes both.
    """
    list(_locked(old_messages))
    # Checked again: a replay may have queued some of them meanwhile.
    rows = Delivery.objects.filter(id__in=eligible, consumer_id=consumer_id, state=state)
    keys = list(rows.order_by("id").select_for_update().values_list("id", flat=True))
    gone = Delivery.objects.filter(id__in=keys)
    Attempt.objects.filter(delivery_id__in=keys).delete()
    gone._raw_delete(gone.db)
    change: Tally[tuple[int, str]] = Tally()
    change[consumer_id, state] = change[consumer_id, MADE] = -len(keys)
    Counter.add(change, slot)
    return len(keys) + _delete_unwanted(old_messages)


def _locked(message_ids: list[int]) -> QuerySet[Message, int]:
    """Lock messages, which keeps a backfill from creating deliveries while they are deleted."""
    rows = Message.objects.filter(id__in=message_ids).exclude(state=Message.State.ACCEPTED)
    return rows.order_by("id").select_for_update().values_list("id", flat=True)


def _delete_unwanted(locked: list[int]) -> int:
    deliveries = Delivery.objects.filter(message_id=OuterRef("id"))
    unwanted = Message.objects.filter(~Exists(deliveries), id__in=locked)
    unwanted = unwanted.exclude(state=Message.State.ACCEPTED)
    gone = list(unwanted.values_list("id", flat=True))
    if gone:
        RetentionMark.note(EVERY_CHANNEL, max(gone))
    MessageBody.objects.filter(message_id__in=gone).delete()
    messages = Message.objects.filter(id__in=gone)
    messages._raw_delete(messages.db)
    return len(gone)


def _messages(channel: Channel, cutoffs: _Cutoffs) -> Iterator[int]:
    """Examine once each message that has become old enough: some have no delivery at all."""
    accepted = Message.objects.filter(state=Message.State.ACCEPTED)
    accepted = by_index(accepted, "message_state").order_by("id")
    waiting = accepted.values_list("id", flat=True).first()
    end = ids.id_at(cutoffs.finished)
    # After an extension of the retention some of them must be examined again later.
    if channel.pruned_to > end:
        _note(channel, end)
    # Messages that are not fanned out yet are examined later.
    end = end if waiting is None else min(end, waiting)
    while True:
        rows = Message.objects.filter(channel_id=channel.id, id__gt=channel.pruned_to, id__lt=end)
        rows = by_index(rows, "message_channel").order_by("id")
        page = list(rows.values_list("id", "body_bytes")[:BATCH])
        if not page:
            return
        for part in slices.cut(page):
            yield transactions.run(partial(_scan, channel, part))


def _note(channel: Channel, looked_at: int) -> None:
    # Not saved through the model: this is no change of configuration.
    Channel.objects.filter(id=channel.id).update(pruned_to=looked_at)
    channel.pruned_to = looked_at


def _scan(channel: Channel, page: list[int]) -> int:
    list(_locked(page))
    count = _delete_unwanted(page)
    _note(channel, page[-1])
    return count
