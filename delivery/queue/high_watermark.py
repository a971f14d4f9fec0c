"""Compute the high watermark of a consumer: each delivery up to this id can be read now.

A transaction gives its deliveries their ids some time before it commits, so a delivery can appear
below others that were read before. A reader of "everything up to the newest one" would skip it for
ever. MySQL shows open transactions only to privileged users, and SQLite to nobody, but what they
work on is visible: until a fan-out commits its messages wait, and until a backfill or a restore is
complete it is open.
"""

from datetime import timedelta

from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import Consumer, Message
from delivery.models import Replay, Restore

MARGIN = timedelta(seconds=2)
"""Longer than a process's estimate of the database's time, from which ids are made, is late."""


def of(consumer: Consumer) -> int:
    """Return an id: every delivery of the consumer with a lower one is committed.

    While a backfill or a restore of the consumer is open, it is the id of the time when that began.
    """
    # Before the queries: later transactions have only later ids.
    begun_at = [clock.now()]
    fanouts = Message.objects.filter(state=Message.State.ACCEPTED).order_by("id")
    begun_at += fanouts.values_list("accepted_at", flat=True)[:1]
    replays = Replay.objects.filter(state=Replay.State.RUNNING)
    begun_at += [
        replay.created_at
        for replay in replays
        if replay.kind == "backfill" and consumer.id in replay.consumer_ids
    ]
    restores = Restore.objects.filter(consumer_id=consumer.id, state__in=Restore.OPEN)
    begun_at += restores.values_list("created_at", flat=True)
    return ids.id_at(min(begun_at) - MARGIN)
