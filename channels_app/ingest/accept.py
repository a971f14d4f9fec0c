"""Store messages in one transaction, once per idempotency key, before responding (S0-26)."""

import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

from django.db import connection, transaction

from channels_app import failpoints, metrics
from channels_app.core import times
from channels_app.core.ordering_key import Keying
from channels_app.database import clock, raw, transactions
from channels_app.database.transactions import GroupCommit
from channels_app.ingest import limits
from channels_app.models import IdempotencyRecord, Message, MessageBody, new_message_id, reseed_ids
from channels_app.registry import data_encryption
from channels_app.registry.cache import ChannelConfig
from channels_app.signals import message_accepted

SHARED_MESSAGES = 128
SHARED_BYTES = 1024 * 1024
"""Limits of a commit that callers share. A larger order gets a commit of its own, so that other
callers do not wait for it."""
ROW_BYTES = 512
"""Size of a message's rows without its body and headers, in bytes."""
FEW_MESSAGES = 16
"""Larger orders share commits only among themselves: a few messages need not wait until batches of
hundreds are stored."""
BATCH_BYTES = SHARED_MESSAGES * ROW_BYTES
"""Limit of a commit that batches share: a short one, since it competes with everything else."""
FEW_S = 1.0
"""Seconds after an order of few messages for which batches pause between commits."""
MAX_PAUSE_S = 0.05

MESSAGES = raw.Insert(
    Message,
    numbers=("id", "channel_id", "priority", "body_bytes"),
    values=(
        *("producer_id", "event_type", "ordering_key", "idempotency_key", "content_type"),
        *("headers", "accepted_at", "due_at", "expires_at"),
    ),
)
BODIES = raw.Insert(MessageBody, numbers=("message_id",), values=("data", "key_id"))
RECORDS = raw.Insert(
    IdempotencyRecord, numbers=("message_id",), values=("digest", "body_digest", "expires_at")
)
_TABLE = IdempotencyRecord._meta.db_table
_FIND = (
    "SELECT digest, message_id, body_digest, expires_at > %s"  # noqa: S608 (a name of ours)
    f" FROM {_TABLE} WHERE digest IN ({{}})"
)
_REMOVE = f"DELETE FROM {_TABLE} WHERE expires_at <= %s AND digest IN ({{}})"  # noqa: S608


class Publication(NamedTuple):
    """One message as a producer sent it, already validated."""

    body: bytes
    content_type: str = ""
    idempotency_key: str = ""
    event_type: str = ""
    priority: int = 4
    """0 (lowest) to 9."""
    due_at: datetime | None = None
    """Earliest delivery; None means now."""
    delay_ms: int | None = None
    """Delay from the time of acceptance, by the database's clock."""
    spread_ms: int = 0
    """Maximum random extra delay, which spreads messages that are due at the same instant."""
    expires_at: datetime | None = None
    ordering_key: str = ""
    headers: Mapping[str, str] = MappingProxyType({})
    producer_seq: int | None = None
    """The producer's number within the ordering key, by which sequencing.py accepts them."""


class Accepted(NamedTuple):
    """The result for one publication."""

    message_id: int
    duplicate: bool
    """There is an earlier message with this idempotency key; nothing was stored."""
    conflict: bool
    """That earlier message has another body; this publication was rejected."""
    due_at: datetime


class _Order(NamedTuple):
    """The publications of one caller."""

    channel: ChannelConfig
    producer_id: int | None
    publications: Sequence[Publication]


class _Record(NamedTuple):
    """The stored message of an idempotency key."""

    message_id: int
    body_digest: str
    due_at: datetime | None
    """None for a message that an earlier transaction stored."""


def accept(
    channel: ChannelConfig,
    producer_id: int | None,
    publications: Sequence[Publication],
    *,
    within_quota: bool = True,
) -> list[Accepted]:
    """Store ``publications`` in one transaction and wake delivery; results have the same order.

    Concurrent callers share a transaction. Returns only after the commit: an exception means that
    nothing was stored. Raises OverQuota and StorageFull, unless ``within_quota`` is False, and what
    the database raises if it cannot store (the API responds with 503).
    """
    if channel.keying is not None:
        publications = _keyed(channel.keying, publications)
    order = _Order(channel, producer_id, publications)
    held = limits.take(channel, producer_id, publications) if within_quota else None
    try:
        results = _accept(order)
    except BaseException:
        limits.give_back(held, publications)
        raise
    if held is not None:
        limits.give_back(held, _left_out(publications, results))
    return results


def earlier_result(
    channel: ChannelConfig, producer_id: int | None, publication: Publication
) -> Accepted | None:
    """The result that its idempotency key has already; None for an unused key, or none."""
    digest = _digest(_Order(channel, producer_id, [publication]), publication)
    if not digest:
        return None
    now = clock.now()
    record = _taken({digest}, now)[0].get(digest)
    if record is None:
        return None
    result = _repeated(record, hashlib.sha256(publication.body).hexdigest(), now)
    metrics.DUPLICATES.inc(result.duplicate)
    return result


class _Batches:
    """Stores batches one after the other, with pauses while others publish few messages.

    A pause is as long as the commit before it. Without pauses, batches of 100 from four producers
    delayed the delivery of urgent messages by another 50 %.
    """

    def __init__(self) -> None:
        self.few_at = float("-inf")
        """When (`time.monotonic`) an order of few messages came last."""
        self._next_at = 0.0

    def commit(self, orders: Sequence[_Order]) -> list[list[Accepted]]:
        start = time.monotonic()
        if start - self.few_at < FEW_S and start < self._next_at:
            time.sleep(self._next_at - start)
            start = time.monotonic()
        try:
            return _commit(orders)
        finally:
            end = time.monotonic()
            self._next_at = end + min(end - start, MAX_PAUSE_S)


_batches = _Batches()
_batch_commit = GroupCommit(_batches.commit, max_orders=SHARED_MESSAGES, max_size=BATCH_BYTES)


def _commit(orders: Sequence[_Order]) -> list[list[Accepted]]:
    results = transactions.retry(lambda: _store(orders), on_collision=reseed_ids)
    failpoints.reach("after_shared_accept" if len(orders) > 1 else "after_accept")
    _announce(orders, results)
    return results


_group_commit = GroupCommit(_commit, max_orders=SHARED_MESSAGES, max_size=SHARED_BYTES)


def _keyed(keying: Keying, publications: Sequence[Publication]) -> list[Publication]:
    """The publications, with derived ordering keys where they have none (S2-63, S3-46)."""
    return [
        publication
        if publication.ordering_key
        else publication._replace(ordering_key=keying.key(publication.body))
        for publication in publications
    ]


def _accept(order: _Order) -> list[Accepted]:
    publications = order.publications
    size = sum([_weight(publication) for publication in publications])
    is_large = len(publications) > SHARED_MESSAGES or size > SHARED_BYTES
    if is_large or connection.in_atomic_block:
        (results,) = transactions.run(lambda: _store([order]), on_collision=reseed_ids)
        _announce([order], [results])
        return results
    if len(publications) > FEW_MESSAGES:
        return _batch_commit.run(order, size)
    _batches.few_at = time.monotonic()
    return _group_commit.run(order, size)


def _weight(publication: Publication) -> int:
    """Approximate size in an SQL statement, in bytes."""
    headers = sum([len(name) + len(value) for name, value in publication.headers.items()])
    return ROW_BYTES + len(publication.body) + headers


def _store(orders: Sequence[_Order]) -> list[list[Accepted]]:
    now = clock.now()
    digests = [
        [_digest(order, publication) for publication in order.publications] for order in orders
    ]
    taken, statements = _taken({digest for group in digests for digest in group if digest}, now)
    written = _Written()
    results = [
        [
            _accept_one(order, publication, digest, taken, written, now)
            for publication, digest in zip(order.publications, group, strict=True)
        ]
        for order, group in zip(orders, digests, strict=True)
    ]
    # Sorted by digest for all callers, so that transactions with the same keys do not deadlock.
    written.records.sort(key=lambda row: row[1][0])
    statements += RECORDS.statements(written.records)
    statements += MESSAGES.statements(written.messages)
    statements += BODIES.statements(written.bodies)
    if statements:
        failpoints.reach("before_shared_accept" if len(orders) > 1 else "before_accept")
        transactions.write(statements)
    return results


def _digest(order: _Order, publication: Publication) -> str:
    key = publication.idempotency_key
    return order.channel.key_digest(order.producer_id, key) if key else ""


def _taken(digests: set[str], now: datetime) -> tuple[dict[str, _Record], list[raw.Statement]]:
    """Records of these keys that have not expired, and statements that delete the expired ones."""
    if not digests:
        return {}, []
    places, wanted = ", ".join(["%s"] * len(digests)), sorted(digests)
    rows = raw.read(_FIND.format(places), [raw.text(now), *wanted])
    taken = {digest: _Record(id_, body, None) for digest, id_, body, is_open in rows if is_open}
    lapsed = [digest for digest, _, _, is_open in rows if not is_open]
    if not lapsed:
        return taken, []
    places = ", ".join(["%s"] * len(lapsed))
    return taken, [(_REMOVE.format(places), [raw.text(now), *lapsed])]


class _Written:
    """Rows to be inserted."""

    def __init__(self) -> None:
        self.messages: list[raw.Row] = []
        self.bodies: list[raw.Row] = []
        self.records: list[raw.Row] = []


def _accept_one(
    order: _Order,
    publication: Publication,
    digest: str,
    taken: dict[str, _Record],
    written: _Written,
    now: datetime,
) -> Accepted:
    """The result for one publication; appends its rows to ``written``."""
    body_digest = hashlib.sha256(publication.body).hexdigest() if digest else ""
    if digest and (record := taken.get(digest)):
        return _repeated(record, body_digest, now)
    message_id, due_at = new_message_id(), _due_at(publication, now)
    encrypt = order.channel.encrypt_bodies
    data, key_id = data_encryption.encrypt_body(message_id, publication.body, encrypt=encrypt)
    written.messages.append(_message(order, publication, message_id, now, due_at))
    written.bodies.append(((message_id,), (data, key_id)))
    if digest:
        taken[digest] = _Record(message_id, body_digest, due_at)
        expires_at = now + timedelta(seconds=order.channel.idempotency_window_s)
        written.records.append(((message_id,), (digest, body_digest, raw.text(expires_at))))
    return Accepted(message_id, False, False, due_at)


def _repeated(record: _Record, body_digest: str, now: datetime) -> Accepted:
    same = record.body_digest == body_digest
    due_at = record.due_at
    if due_at is None:
        earlier = Message.objects.filter(id=record.message_id)
        due_at = earlier.values_list("due_at", flat=True).first()
    return Accepted(record.message_id, same, not same, due_at or now)


def _due_at(publication: Publication, now: datetime) -> datetime:
    """In whole milliseconds, as the API returns it, and never earlier than requested."""
    if publication.delay_ms is not None:
        due_at = now + timedelta(milliseconds=publication.delay_ms)
    else:
        due_at = max(publication.due_at or now, now)
    if publication.spread_ms:
        # Spreads load, keeps no secret.
        due_at += timedelta(milliseconds=random.randint(0, publication.spread_ms))  # noqa: S311
    return times.floor_ms(now) if due_at <= now else times.ceil_ms(due_at)


def _message(
    order: _Order, publication: Publication, message_id: int, now: datetime, due_at: datetime
) -> raw.Row:
    numbers = message_id, order.channel.id, publication.priority, len(publication.body)
    return numbers, (
        order.producer_id,
        publication.event_type,
        publication.ordering_key,
        publication.idempotency_key,
        publication.content_type,
        data_encryption.store_headers(
            message_id, publication.headers, encrypt=order.channel.encrypt_bodies
        ),
        raw.text(now),
        raw.text(due_at),
        raw.text(publication.expires_at) if publication.expires_at else None,
    )


def _announce(orders: Sequence[_Order], results: Sequence[Sequence[Accepted]]) -> None:
    """Count the results, and wake delivery once per channel and priority."""
    flat = [result for group in results for result in group]
    stored = sum(not (result.duplicate or result.conflict) for result in flat)
    metrics.ACCEPTED.inc(stored)
    if duplicates := sum(result.duplicate for result in flat):
        metrics.DUPLICATES.inc(duplicates)
    new: dict[tuple[int, int], list[int]] = {}
    for order, group in zip(orders, results, strict=True):
        for publication, result in zip(order.publications, group, strict=True):
            if not (result.duplicate or result.conflict):
                kind = order.channel.id, publication.priority
                new.setdefault(kind, []).append(result.message_id)

    def wake() -> None:
        for (channel_id, priority), ids in new.items():
            message_accepted.send(
                sender=Message, channel_id=channel_id, priority=priority, message_ids=ids
            )

    transaction.on_commit(wake, robust=True)


def _left_out(
    publications: Sequence[Publication], results: Sequence[Accepted]
) -> list[Publication]:
    """The publications that were not stored."""
    pairs = zip(publications, results, strict=True)
    return [publication for publication, result in pairs if result.duplicate or result.conflict]
