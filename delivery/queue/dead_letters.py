"""Publish the messages of dead deliveries on the dead-letter channels of their consumers."""

import logging
from collections.abc import Mapping
from datetime import timedelta

from channels_app import failpoints
from channels_app.core import ids
from channels_app.core.encryption import Unreadable
from channels_app.core.errors import KeyUnavailable
from channels_app.database import clock, raw, transactions
from channels_app.database.raw import dialect
from channels_app.ingest import accept
from channels_app.ingest.accept import Publication
from channels_app.models import MessageBody, reseed_ids
from channels_app.registry import data_encryption
from channels_app.registry.cache import config_cache
from delivery.core.lifecycle import DeliveryState
from delivery.core.signing import DEAD_LETTER_PREFIX
from delivery.models import DeadLetter, Delivery

logger = logging.getLogger(__name__)

BATCH_SIZE = 20
"""Bodies in memory at one time; each may be as large as MAX_BODY_BYTES."""
RETRY = timedelta(seconds=30)
"""Wait before another try to read a body whose encryption key this process lacks."""
MAX_HOPS = 5
"""Most dead-letter channels that a message may pass in succession."""
_HOPS = f"{DEAD_LETTER_PREFIX}Hops"
_TABLE = DeadLetter._meta.db_table
_DUE = f"SELECT delivery_id FROM {_TABLE} WHERE due_at <= %s ORDER BY due_at LIMIT %s"


def has_work() -> bool:
    """Whether any consumer has a dead-letter channel; needs no query."""
    return bool(config_cache.dead_lettered())


def forward() -> int:
    """Publish a batch; return how many rows were processed, 0 when none is due."""
    return transactions.run(_forward, on_collision=reseed_ids)


def _forward() -> int:
    """Publish messages and delete their rows in one transaction, so each is published once."""
    now = clock.now()
    keys = [key for (key,) in raw.read(_DUE + dialect.skip_locked, [raw.text(now), BATCH_SIZE])]
    if not keys:
        return 0
    deliveries = Delivery.objects.select_related(
        "message", "channel", "consumer__dead_letter_channel"
    ).in_bulk(keys)
    later = []
    for key in keys:
        row = deliveries.get(key)
        # A delivery that was replayed meanwhile is no longer a dead letter.
        if row is None or row.state != DeliveryState.DEAD:
            continue
        try:
            _publish(row)
        except KeyUnavailable as missing:
            logger.warning("dead letter %s waits for an encryption key: %s", row, missing.detail)
            later.append(key)
        except Unreadable as error:
            logger.warning("dead letter %s is not published: %s", row, error)
    failpoints.reach("in_forward")
    DeadLetter.objects.filter(delivery_id__in=later).update(due_at=now + RETRY)
    DeadLetter.objects.filter(delivery_id__in=set(keys).difference(later)).delete()
    return len(keys)


def _publish(row: Delivery) -> None:
    """Publish one dead letter, if its body exists.

    Raises KeyUnavailable, and Unreadable for a body that differs from the accepted one.
    """
    target, message = row.consumer.dead_letter_channel, row.message
    channel = config_cache.channel(target.slug) if target else None
    stored = MessageBody.objects.filter(message_id=message.id).first()
    if channel is None or stored is None:
        return
    body = data_encryption.decrypt_body(message.id, bytes(stored.data), stored.key_id)
    carried = data_encryption.decrypt_headers(message.id, message.headers)
    if _hops(carried) >= MAX_HOPS:
        logger.warning(
            "dead letter %s is not published: it has passed %d dead-letter channels", row, MAX_HOPS
        )
        return
    publication = Publication(
        body,
        content_type=message.content_type,
        event_type=message.event_type,
        priority=message.priority,
        ordering_key=message.ordering_key,
        headers=_headers(
            carried,
            channel=row.channel.slug,
            consumer=row.consumer.client_id,
            message=ids.to_public(ids.MESSAGE, message.id),
            reason=row.reason,
            attempts=row.attempt_count,
        ),
    )
    accept.accept(channel, message.producer_id, [publication], within_quota=False)


def _headers(
    carried: Mapping[str, str],
    *,
    channel: str,
    consumer: str,
    message: str,
    reason: str,
    attempts: int,
) -> dict[str, str]:
    """Return the forwarded headers with those of this death instead of those of an earlier one."""
    return {
        **{
            name: value
            for name, value in carried.items()
            if not name.startswith(DEAD_LETTER_PREFIX)
        },
        f"{DEAD_LETTER_PREFIX}Channel": channel,
        f"{DEAD_LETTER_PREFIX}Consumer": consumer,
        f"{DEAD_LETTER_PREFIX}Message": message,
        f"{DEAD_LETTER_PREFIX}Reason": reason,
        f"{DEAD_LETTER_PREFIX}Attempts": str(attempts),
        _HOPS: str(_hops(carried) + 1),
    }


def _hops(carried: Mapping[str, str]) -> int:
    """Return how many dead-letter channels the message has passed."""
    return int(carried.get(_HOPS, 0))
