"""Process acknowledgements of deliveries, those of providers included (S3-38, S3-39).

A delivery that awaits its acknowledgement becomes due at its deadline like any other row, so a
claim finds it. An acknowledgement that arrives before its attempt is recorded is kept until then.
"""

import base64
import hmac
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from django.db.models import Exists, OuterRef

from channels_app import failpoints, randomness
from channels_app.core import backoff, ids
from channels_app.core.errors import NotFound
from channels_app.database import raw, transactions
from channels_app.database.raw import by_index, dialect
from channels_app.registry import data_encryption
from channels_app.registry.cache import config_cache
from delivery import dead_letters, metrics
from delivery.core import acks
from delivery.core.acks import AckResult, ProviderStatus, ack_result, confirmed, correlation_id
from delivery.core.lifecycle import FINISHED, DeliveryState, Reason, Transition
from delivery.models import Correlation, Counter, Delivery, PendingAck
from delivery.ordering import key_queue

DELIVERIES, EARLY = Delivery._meta.db_table, PendingAck._meta.db_table
CORRELATIONS = Correlation._meta.db_table
# A callback stored there keeps its own time.
NOTED = dialect.upsert(
    "id",
    f"noted_at = CASE WHEN {CORRELATIONS}.ok IS NULL THEN {dialect.new('noted_at')} "
    f"ELSE {CORRELATIONS}.noted_at END, delivery_id = {dialect.new('delivery_id')}",
)
CLOCKS_DIFFER = timedelta(seconds=1)
"""Greater than the difference between two processes' estimates of the database's time."""


class Waiting(Protocol):
    """A locked delivery that awaits its acknowledgement."""

    @property
    def id(self) -> int: ...
    @property
    def consumer_id(self) -> int: ...
    @property
    def failure_count(self) -> int: ...
    @property
    def event_type(self) -> str: ...


class Move(NamedTuple):
    """A delivery and the transition to apply to it."""

    delivery_id: int
    transition: Transition


class Named(NamedTuple):
    """A delivery with the id that the consumer's provider gave it."""

    consumer_id: int
    delivery_id: int
    provider_id: str
    accepted_at: datetime


def timed_out(rows: Iterable[Waiting]) -> list[Move]:
    """Return transitions of deliveries that were not acknowledged in time."""
    rows = list(rows)
    metrics.ACKS.labels("timeout").inc(len(rows))
    return [Move(row.id, _silently(row)) for row in rows]


def decided(lapsed: Sequence[Waiting]) -> list[Move]:
    """Return transitions of expired leases whose deliveries were acknowledged or refused before.

    Nothing else is known about how those attempts ended; it saves another one.
    """
    if not lapsed:
        return []
    acks_by_id = _stored(row.id for row in lapsed)
    acknowledged = [row for row in lapsed if row.id in acks_by_id]
    ends = [
        acks.confirmed()
        if acks_by_id[row.id]
        else refused(row.consumer_id, row.failure_count, row.event_type)
        for row in acknowledged
    ]
    return [Move(row.id, end) for row, end in zip(acknowledged, ends, strict=True)]


def early(delivery_ids: Iterable[int]) -> dict[int, bool]:
    """Take the stored early acknowledgements of these deliveries; True for ok."""
    return _stored(delivery_ids) if config_cache.awaiting() else {}


def _stored(delivery_ids: Iterable[int]) -> dict[int, bool]:
    ids = raw.listed(delivery_ids)
    found = raw.read(f"SELECT delivery_id, ok FROM {EARLY} WHERE delivery_id IN ({ids})")
    if found:
        gone = raw.listed(key for key, _ in found)
        raw.execute(f"DELETE FROM {EARLY} WHERE delivery_id IN ({gone})")
    return {key: bool(ok) for key, ok in found}


def correlated(named: Iterable[Named], now: datetime) -> dict[int, bool]:
    """Store the provider ids of deliveries, and take the callbacks that came before; True for ok.

    A callback from before the message was accepted is ignored: it concerns another message with the
    same id, or is a guess.
    """
    since = {correlation_id(it.consumer_id, it.provider_id): it for it in named}
    if not since:
        return {}
    rows = sorted((key, it.delivery_id) for key, it in since.items())
    # In key order, so that two writers cannot deadlock.
    texts = ", ".join(f"({key:d}, {delivery_id:d}, %s)" for key, delivery_id in rows)
    raw.execute(
        f"INSERT INTO {CORRELATIONS} (id, delivery_id, noted_at) VALUES {texts} {NOTED}",
        [raw.text(now)] * len(rows),
    )
    ours = raw.listed(key for key, _ in rows)
    # Locked, so that this sees callbacks committed after the transaction began.
    found = raw.read(
        f"SELECT id, delivery_id, ok, CAST(noted_at AS CHAR) FROM {CORRELATIONS} "
        f"WHERE id IN ({ours}) AND ok IS NOT NULL{dialect.locked}"
    )
    if not found:
        return {}
    gone = raw.listed(key for key, *_ in found)
    raw.execute(
        f"UPDATE {CORRELATIONS} SET ok = NULL, noted_at = %s WHERE id IN ({gone})", [raw.text(now)]
    )
    words = {
        delivery_id: bool(ok)
        for key, delivery_id, ok, said_at in found
        if raw.instant(said_at) >= since[key].accepted_at - CLOCKS_DIFFER
    }
    metrics.ACKS.labels(acks.AckResult.EARLY).inc(len(words))
    metrics.ACKS.labels("foreign").inc(len(found) - len(words))
    return words


def refused(consumer_id: int, failure_count: int, event_type: str) -> Transition:
    """Return the transition after the consumer reported a failure."""
    view = config_cache.consumers({consumer_id}).get(consumer_id)
    rule = view.retry_for(event_type) if view else backoff.NEVER
    return acks.refused(
        failure_count=failure_count,
        max_attempts=rule.max_attempts,
        policy=rule.policy,
        jitter=randomness.jitter(),
        reason=Reason.RETRY,
    )


def wait_of(consumer_id: int) -> timedelta:
    """Return the time to wait for the consumer's acknowledgements; 0 if it does not send any."""
    view = config_cache.consumers({consumer_id}).get(consumer_id)
    mode = acks.mode_of(view.ack) if view else None
    return timedelta(seconds=mode.wait_s if mode else 0.0)


def move(moves: Sequence[Move], now: datetime) -> None:
    """Apply transitions to locked deliveries; the caller updates counters and keys."""
    alike: dict[tuple[DeliveryState, Reason, bool, bool], list[Move]] = {}
    for one in moves:
        to = one.transition
        alike.setdefault((to.state, to.reason, to.charged, to.due_in is None), []).append(one)
    for (state, reason, charged, is_over), some in alike.items():
        cases = " ".join(f"WHEN {one.delivery_id:d} THEN %s" for one in some)
        dues = [raw.text(now + timedelta(seconds=one.transition.due_in or 0.0)) for one in some]
        due = "NULL" if is_over else f"CASE id {cases} END"
        raw.execute(
            f"UPDATE {DELIVERIES} SET state = %s, reason = %s, due_at = {due}, finished_at = %s, "
            f"lease_owner = NULL, failure_count = failure_count + {charged:d}, "
            f"version = version + 1 "
            f"WHERE id IN ({raw.listed(one.delivery_id for one in some)})",
            [
                state.value,
                reason.value,
                *([] if is_over else dues),
                raw.text(now) if is_over else None,
            ],
        )


def _silently(row: Waiting) -> Transition:
    view = config_cache.consumers().get(row.consumer_id)
    rule = view.retry_for(row.event_type) if view else backoff.NEVER
    return acks.timed_out(
        acks.mode_of(view.ack) if view else None,
        failure_count=row.failure_count,
        max_attempts=rule.max_attempts,
        policy=rule.policy,
        jitter=randomness.jitter(),
    )


PURPOSE = b"acknowledgement addresses"
"""Purpose of the key that signs tokens."""
RETENTION = timedelta(hours=1)
"""How long an acknowledgement without a matching attempt is kept."""


class Answered(NamedTuple):
    """The effect of an acknowledgement."""

    result: AckResult
    delivery: Delivery
    due: dict[int, datetime]
    """When released deliveries of ordered consumers are due."""


def token(delivery_id: int) -> str:
    """Return the token for one delivery in the URL that its consumer may call.

    Raises core.encryption.KeyMissing.
    """
    name = ids.to_public(ids.DELIVERY, delivery_id)
    return f"{name}.{_signature(name, data_encryption.signing_key(PURPOSE))}"


def opened(text: str) -> int:
    """Return the delivery of a token. Raises NotFound for a token with an invalid signature."""
    name, _, given = text.partition(".")
    keys, signature = data_encryption.signing_keys(PURPOSE), given.encode("utf-8", "replace")
    if any(hmac.compare_digest(signature, _signature(name, key).encode()) for key in keys):
        number = ids.from_public(ids.DELIVERY, name)
        if number is not None:
            return number
    raise _foreign()


def _signature(name: str, key: bytes) -> str:
    mac = hmac.digest(key, name.encode("utf-8", "replace"), "sha256")
    return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def acknowledge(delivery_id: int, *, ok: bool, now: datetime, slot: int = 0) -> Answered:
    """Process an acknowledgement. Raises NotFound for a delivery that was deleted meanwhile."""
    answered = transactions.run(lambda: _write(delivery_id, ok, now, slot))
    if answered is None:
        raise _foreign()
    metrics.ACKS.labels(answered.result.value).inc()
    failpoints.reach("after_ack")
    return answered


def extend_wait(delivery_id: int, *, now: datetime) -> Answered:
    """Restart the wait for an acknowledgement because the consumer is at work (S4-26).

    The wait begins with the response to the broker's request; before that nothing can be extended.
    Raises NotFound.
    """
    answered = transactions.run(lambda: _extend_wait(delivery_id, now))
    if answered is None:
        raise _foreign()
    failpoints.reach("after_ack")
    return answered


def forget(now: datetime) -> int:
    """Delete early acknowledgements without a matching attempt; return how many."""
    old = PendingAck.objects.filter(said_at__lt=now - RETENTION)
    # Keep those of open attempts, which stay open while no pump runs: they decide the result.
    held = Delivery.objects.filter(id=OuterRef("pk"), state=DeliveryState.IN_FLIGHT.value)
    return old.exclude(Exists(held)).delete()[0]


def _foreign() -> NotFound:
    metrics.ACKS.labels("foreign").inc()
    return NotFound("unknown_token", "No delivery waits for an acknowledgement with this token.")


def _write(number: int, ok: bool, now: datetime, slot: int) -> Answered | None:
    row = Delivery.objects.select_for_update().filter(id=number).first()
    if row is None:
        return None
    result = ack_result(DeliveryState(row.state), Reason(row.reason), ok=ok)
    due: dict[int, datetime] = {}
    if result is AckResult.EARLY:
        _, is_new = PendingAck.objects.get_or_create(
            delivery_id=row.id, defaults={"ok": ok, "said_at": now}
        )
        result = result if is_new else AckResult.DOUBLE
    elif result is AckResult.ON_TIME:
        due = _follow(row, ok, now, slot)
    failpoints.reach("in_ack")
    return Answered(result, row, due)


def _extend_wait(number: int, now: datetime) -> Answered | None:
    row = Delivery.objects.select_for_update().filter(id=number).first()
    if row is None:
        return None
    result = ack_result(DeliveryState(row.state), Reason(row.reason), ok=False)
    if result is AckResult.ON_TIME:
        row.due_at = max(row.due_at or now, now + wait_of(row.consumer_id))
        row.version += 1
        row.save(update_fields=["due_at", "version"])
    failpoints.reach("in_ack")
    return Answered(result, row, {})


def _follow(row: Delivery, ok: bool, now: datetime, slot: int) -> dict[int, datetime]:
    to = confirmed()
    if not ok:
        to = refused(row.consumer_id, row.failure_count, row.event_type)
    move([Move(row.id, to)], now)
    tally: Tally[tuple[int, str]] = Tally()
    tally[row.consumer_id, row.state] -= 1
    tally[row.consumer_id, to.state.value] += 1
    Counter.add(tally, slot)
    if to.state is DeliveryState.DELIVERED:
        metrics.DELIVERIES.labels(to.state.value).inc()
        metrics.LATENCY.observe((now - row.accepted_at).total_seconds())
    due = {}
    if to.state in FINISHED:
        is_dead = to.state is DeliveryState.DEAD
        due = key_queue.leave_rows([(row.id, row.consumer_id)], now, dead=is_dead)
        if is_dead:
            dead_letters.note([(row.id, row.consumer_id)], now)
    elif to.due_in is not None:
        due = {row.consumer_id: now + timedelta(seconds=to.due_in)}
    row.refresh_from_db()
    return due


PROVIDER_STATUS_RETENTION = timedelta(days=2)
"""How long a provider's id is stored: twice the longest wait for an acknowledgement."""
BATCH = 1000


class ProviderReport(NamedTuple):
    """A status from a callback, and its delivery."""

    delivery_id: int | None
    """None while the response to the broker's request is not recorded."""
    ok: bool
    result: AckResult | None
    """How the acknowledgement relates, where no delivery is known yet that would decide it."""


def find(
    consumer_id: int, statuses: Sequence[ProviderStatus], now: datetime
) -> list[ProviderReport]:
    """Return the deliveries that these statuses are about, in their order.

    A status with an unknown id is kept until the response that contains the id is recorded
    (acks.correlated), like early acknowledgements. If none does, it concerned another sender's
    message.
    """
    keys = [correlation_id(consumer_id, status.provider_id) for status in statuses]
    known = dict(
        Correlation.objects.filter(id__in=keys, delivery_id__isnull=False).values_list(
            "id", "delivery_id"
        )
    )
    reports = []
    for key, status in zip(keys, statuses, strict=True):
        delivery_id, result = known.get(key), None
        if delivery_id is None:
            delivery_id, result = _stored_result(key, status, now)
        reports.append(ProviderReport(delivery_id, status.ok, result))
    return reports


def forget_provider_statuses(now: datetime) -> Iterator[int]:
    """Delete ids that are too old for a callback; yield the number of each batch."""
    # If almost all are old, MariaDB would sort the whole table for each batch.
    indexed = by_index(Correlation.objects.all(), "correlation_age")
    left = old = indexed.filter(noted_at__lt=now - PROVIDER_STATUS_RETENTION).order_by("noted_at")
    while gone := list(left.values_list("id", "ok", "noted_at")[:BATCH]):
        rows = Correlation.objects.filter(id__in=[key for key, _, _ in gone])
        rows._raw_delete(rows.db)
        # InnoDB keeps deleted rows in the index for a while: do not read them again each time.
        left = old.filter(noted_at__gte=gone[-1][-1])
        metrics.ACKS.labels("foreign").inc(sum(ok is not None for _, ok, _ in gone))
        yield len(gone)


def _stored_result(
    key: int, status: ProviderStatus, now: datetime
) -> tuple[int | None, AckResult | None]:
    # The response may be recorded at this moment; then this insert collides, and runs again. The
    # metric counts it once its delivery is known: it may concern another sender's message.
    delivery_id, result = transactions.run(
        lambda: _keep(key, status, now), on_collision=lambda: None
    )
    if result is not None:
        failpoints.reach("after_early_callback")
    return delivery_id, result


def _keep(key: int, status: ProviderStatus, now: datetime) -> tuple[int | None, AckResult | None]:
    row = Correlation.objects.filter(id=key).first()
    if row is None:
        Correlation.objects.create(id=key, ok=status.ok, noted_at=now)
        failpoints.reach("in_early_callback")
        return None, AckResult.EARLY
    if row.delivery_id is None:
        return None, AckResult.DOUBLE
    return row.delivery_id, None
