"""Pause and resume ordering keys, and skip and repair their heads.

All other changes of keys are made when deliveries begin and end (delivery/ordering/key_queue).
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from channels_app import failpoints
from channels_app.access.principal import Principal
from channels_app.core.errors import Conflict, NotFound
from channels_app.database import raw, transactions
from channels_app.models import AuditEntry, ConfigVersion
from channels_app.registry.cache import config_cache
from delivery import metrics, transitions
from delivery.core.lifecycle import FINISHED, DeliveryState
from delivery.models import Delivery, OrderingKey, OrderingWaiter
from delivery.ordering import key_queue
from delivery.ordering.key_queue import Locked
from delivery.processes import wakeups
from delivery.transitions import Move

BATCH = 500
"""Keys examined, or deliveries released, in one transaction."""
KEYS, DELIVERIES = OrderingKey._meta.db_table, Delivery._meta.db_table
LOCK_KEY = f"""
    SELECT key_row.id, key_row.consumer_id, key_row.head_id, key_row.paused_at IS NOT NULL,
    key_row.blocked_at IS NOT NULL, head.state
    FROM {KEYS} AS key_row LEFT JOIN {DELIVERIES} AS head ON head.id = key_row.head_id
    WHERE key_row.id > %s ORDER BY key_row.id LIMIT {BATCH}
"""
DONE = {state.value for state in FINISHED}


def pause(key_number: int, principal: Principal, *, now: datetime) -> OrderingKey:
    """Pause a key: only requests already on the wire are completed. Raises NotFound."""

    def write() -> OrderingKey:
        # Lock the head before the key, as every step does that finishes one.
        head_id = (
            OrderingKey.objects.filter(id=key_number).values_list("head_id", flat=True).first()
        )
        Delivery.objects.select_for_update().filter(id=head_id or 0).first()
        key_row, locked = _find(key_number)
        if key_row.paused_at is None:
            key_row.paused_at = now
            key_row.save(update_fields=["paused_at"])
            _keep_head(locked, now)
            _record(key_row, principal, "ordering_key.pause")
        failpoints.reach("in_pause_key")
        return OrderingKey.objects.get(id=key_number)

    paused = transactions.run(write)
    failpoints.reach("after_key_change")
    return paused


def resume(key_number: int, principal: Principal, *, now: datetime) -> dict[int, datetime]:
    """Resume a paused key; return when its released delivery is due.

    Repeating the call is harmless. Raises NotFound.
    """

    def write() -> dict[int, datetime]:
        key_row, locked = _find(key_number)
        if key_row.paused_at is None:
            return {}
        OrderingKey.objects.filter(id=key_number).update(paused_at=None)
        _record(key_row, principal, "ordering_key.resume")
        failpoints.reach("in_pause_key")
        if key_row.head_id is not None:
            return {}
        return _advance([locked._replace(is_paused=0)], now)

    due = transactions.run(write)
    failpoints.reach("after_key_change")
    return due


def skip(
    key_number: int, head_id: int, principal: Principal, *, now: datetime, slot: int = 0
) -> dict[int, datetime]:
    """Skip the head of a key: a dead one stays dead, a waiting one is cancelled.

    Returns when the released delivery is due. Raises NotFound, and Conflict when ``head_id`` is no
    longer the head, or is in flight.
    """

    def write() -> dict[int, datetime]:
        # Lock the head before the key, as every step does that finishes one.
        head = Delivery.objects.select_for_update().filter(id=head_id).first()
        key_row, locked = _find(key_number)
        if head is None or locked.head_id != head.id:
            raise Conflict("not_the_head", "Another delivery is the head of this key.")
        if head.state not in (DeliveryState.QUEUED, *DONE):
            raise Conflict(
                "in_flight", f"The head is {head.state}. Try again when its attempt has ended."
            )
        _record(key_row, principal, "ordering_key.skip", head.id)
        if head.state == DeliveryState.QUEUED:
            due = transitions.apply([Move(head, transitions.CANCEL)], now=now, slot=slot)
            if locked.consumer_id in config_cache.ordered():
                return due
        return _advance([locked], now)

    due = transactions.run(write)
    failpoints.reach("after_key_change")
    return due


def repair(now: datetime) -> Iterator[int]:
    """Release keys that stopped without a reason; yield how many each step repaired.

    These are keys whose head is finished or deleted, and keys of consumers that are not ordered
    (any more). They result only from configuration changes at the same moment, and from rows that
    were deleted by hand.
    """
    config_cache.refresh(now=True)
    after = -1
    while rows := raw.read(LOCK_KEY, [after]):
        after = rows[-1][0]
        if wrong := _stale_head(rows):
            while mended := transactions.run(lambda: _repair(wrong, now)):
                metrics.SWEEP_ROWS.labels("ordering_key").inc(mended)
                failpoints.reach("after_key_change")
                yield mended


def _stale_head(rows: Sequence[tuple[int, int, int | None, int, int, str | None]]) -> list[int]:
    ordered, stands = config_cache.ordered(), key_queue.is_stalled()
    wrong = []
    for key, consumer_id, head_id, is_paused, is_blocked, state in rows:
        if consumer_id not in ordered:
            wrong.append(key)
        elif head_id is None:
            wrong += [key] * (not is_paused)
        elif state is None or state in DONE:
            dead = state == DeliveryState.DEAD and consumer_id in stands
            wrong += [key] * (not (dead and is_blocked))
    return wrong


def _repair(keys: Sequence[int], now: datetime) -> int:
    """Repair keys; return how many changed, 0 when nothing is left to do."""
    ordered, stands = config_cache.ordered(), key_queue.is_stalled()
    locked = list(key_queue.lock(keys).values())
    heads = [key_row.head_id for key_row in locked if key_row.head_id is not None]
    states = dict(Delivery.objects.filter(id__in=heads).values_list("id", "state"))
    over = [key_row for key_row in locked if key_row.consumer_id not in ordered]
    free: list[Locked] = []
    blocked: list[int] = []
    for key_row in locked:
        state = states.get(key_row.head_id or 0)
        if key_row in over or (state is not None and state not in DONE):
            continue
        if key_row.head_id is None and key_row.is_paused:
            continue
        if state == DeliveryState.DEAD and key_row.consumer_id in stands:
            blocked.append(key_row.id)
        else:
            # The count itself may be wrong: search for the next entry.
            free.append(key_row._replace(waiting_count=max(1, key_row.waiting_count)))
    newly_blocked = set(
        OrderingKey.objects.filter(id__in=blocked, blocked_at=None).values_list("id", flat=True)
    )
    key_queue.block(sorted(newly_blocked), now)
    if free:
        _advance(free, now)
    return len(newly_blocked) + len(free) + sum(_dissolve(key_row, now) for key_row in over)


def _dissolve(key_row: Locked, now: datetime) -> int:
    """Release a batch of deliveries of a key at once; with the last ones the key is deleted."""
    waiting = OrderingWaiter.objects.filter(key_number=key_row.id).order_by("place")
    due_times = dict(waiting.values_list("delivery_id", "due_at")[:BATCH])
    if due_times:
        instants = {key: raw.text(max(due_at, now)) for key, due_at in due_times.items()}
        raw.execute_all(list(key_queue.releasing(instants)))
    if len(due_times) < BATCH:
        OrderingKey.objects.filter(id=key_row.id).delete()
    return 1


def _advance(key_rows: Sequence[Locked], now: datetime) -> dict[int, datetime]:
    due = key_queue.advance(key_rows, now)
    wakeups.notify_after_commit(due)
    return due


def _find(key_number: int) -> tuple[OrderingKey, Locked]:
    """Lock and return the key."""
    locked = key_queue.lock([key_number]).get(key_number)
    if locked is None:
        raise NotFound("unknown_ordering_key", "The ordering key has no unfinished deliveries.")
    return OrderingKey.objects.get(id=key_number), locked


def _keep_head(key_row: Locked, now: datetime) -> None:
    """Keep the head of a key that was just paused from being sent (again)."""
    head = Delivery.objects.select_for_update().filter(id=key_row.head_id or 0).first()
    if head is not None and head.state == DeliveryState.QUEUED:
        key_queue.step_back({head.id: key_row.id}, now)
    elif head is not None and head.state == DeliveryState.IN_FLIGHT:
        # A pump may hold it without having sent it. A retry waits (queue/claim).
        ConfigVersion.bump(confirmed=True)


def _record(
    key_row: OrderingKey, principal: Principal, action: str, head_id: int | None = None
) -> None:
    consumer = key_row.consumer
    AuditEntry.record(
        principal.actor,
        action,
        f"consumer:{consumer.channel.slug}/{consumer.client_id}",
        team_id=consumer.team_id,
        reason=principal.reason,
        after={"ordering_key": key_row.ordering_key} | ({"head": head_id} if head_id else {}),
    )
