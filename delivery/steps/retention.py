"""Retention: delete what is finished and old enough, in steps that do not disturb delivery."""

import time
from collections import Counter as Tally
from datetime import datetime, timedelta
from random import sample

from django.db import transaction
from django.db.models import Exists, OuterRef

from channels_app.conf import conf
from channels_app.models import Channel, Consumer, IdempotencyRecord, Message, MessageBody
from channels_app.rules import ids
from delivery.models import Attempt, Counter, Delivery
from delivery.models.counter import MADE
from delivery.rules.lifecycle import DeliveryState

BATCH = 500
BUDGET_S = 10.0
"""Seconds of one run; the next one goes on."""


def forget_keys(now: datetime) -> int:
    """Delete idempotency records whose window closed."""
    total = 0
    end = time.monotonic() + BUDGET_S
    while time.monotonic() < end:
        lapsed = list(
            IdempotencyRecord.objects.filter(expires_at__lte=now).order_by("expires_at")
            .values_list("digest", flat=True)[:BATCH]
        )  # fmt: skip
        IdempotencyRecord.objects.filter(digest__in=lapsed, expires_at__lte=now).delete()
        total += len(lapsed)
        if len(lapsed) < BATCH:
            break
    return total


def prune(now: datetime, slot: int) -> int:
    """Delete deliveries past their channel's retention, then messages that have none left.

    Finished ones go after ``retention_days``, dead ones after ``dead_retention_days``; what still
    waits is never touched. Returns the number of rows deleted.
    """
    end = time.monotonic() + BUDGET_S
    total = 0
    channels = list(Channel.objects.all())
    # In another order each time: one that takes the whole budget must not starve the others.
    for channel in sample(channels, len(channels)):
        finished = now - timedelta(days=channel.retention_days or conf().retention_days)
        dead = now - timedelta(days=channel.dead_retention_days or conf().dead_retention_days)
        for consumer in Consumer.objects.filter(channel=channel):
            for state, cutoff in (
                (DeliveryState.DELIVERED, finished),
                (DeliveryState.CANCELLED, finished),
                (DeliveryState.DEAD, dead),
            ):
                total += _prune_deliveries(consumer.id, state.value, cutoff, slot, end)
        total += _prune_messages(channel.id, finished, end)
    return total


def _prune_deliveries(consumer_id: int, state: str, cutoff: datetime, slot: int, end: float) -> int:
    total = 0
    while time.monotonic() < end:
        with transaction.atomic():
            # Keys are time-ordered: the bound on the key is what the index serves.
            rows = list(
                Delivery.objects.filter(
                    consumer_id=consumer_id,
                    state=state,
                    id__lt=_id_at(cutoff),
                    finished_at__lt=cutoff,
                )
                .order_by("id")
                .select_for_update(skip_locked=True)
                .values_list("id", flat=True)[:BATCH]
            )
            Attempt.objects.filter(delivery_id__in=rows).delete()
            Delivery.objects.filter(id__in=rows).delete()
            change: Tally[tuple[int, str]] = Tally()
            change[consumer_id, state] = change[consumer_id, MADE] = -len(rows)
            Counter.add(change, slot)
        total += len(rows)
        if len(rows) < BATCH:
            break
    return total


def _prune_messages(channel_id: int, cutoff: datetime, end: float) -> int:
    total = after = 0
    while time.monotonic() < end:
        page = list(
            Message.objects.filter(channel_id=channel_id, id__gt=after, id__lt=_id_at(cutoff))
            .exclude(state=Message.State.ACCEPTED)
            .annotate(wanted=Exists(Delivery.objects.filter(message_id=OuterRef("id"))))
            .order_by("id")
            .values_list("id", "wanted")[:BATCH]
        )
        if not page:
            break
        after = page[-1][0]
        gone = [message_id for message_id, wanted in page if not wanted]
        with transaction.atomic():
            MessageBody.objects.filter(message_id__in=gone).delete()
            Message.objects.filter(id__in=gone).delete()
        total += len(gone)
    return total


def _id_at(instant: datetime) -> int:
    return ids.first_id_at(int(instant.timestamp() * 1000))
