"""Count a pull consumer's messages, and move those of a dead-letter queue (S0-77)."""

from datetime import datetime, timedelta
from typing import NamedTuple

from django.db.models import QuerySet

from channels_app import failpoints
from channels_app.access.principal import Principal
from channels_app.core.errors import Refused
from channels_app.database import clock, transactions
from channels_app.database.raw import by_index
from channels_app.ingest import accept
from channels_app.ingest.accept import Publication
from channels_app.models import AuditEntry, Channel, Consumer, Message, new_id, reseed_ids
from channels_app.registry.cache import ChannelConfig, config_cache
from delivery.core.lifecycle import DeliveryState
from delivery.core.ordering import BEHIND
from delivery.core.recipients import LEVELS
from delivery.core.signing import DEAD_LETTER_PREFIX
from delivery.models import Counter, Delivery, MoveTask
from delivery.queue import cancel
from delivery.transport import payloads
from delivery.transport.payloads import Payload

MAX_COUNTED = 10_000
"""Most rows counted one by one for programs: delayed messages, or those not fanned out."""
MAX_MOVES_KEPT = 10
"""Move tasks that are kept for each queue."""
MAX_PER_SECOND = 500
"""The highest rate of a move task, in messages per second. A task without a rate has no limit."""
State = MoveTask.State
BATCH_SIZE = 20
"""Bodies in memory at one time; each may be as large as MAX_BODY_BYTES."""
SOON = timedelta(milliseconds=500)
SLOT = 15
"""The sweeps' slot of the counters."""
UNKNOWN_SOURCE = "A message does not name the queue in which it died: name a destination."
SHARED_SOURCE = "A message died in a channel that has several consumers: replay it there."
UNREADABLE = "A message cannot be read."


class QueueCounts(NamedTuple):
    """Numbers of messages in a queue."""

    ready: int
    """Messages that may be received now, or after an earlier one of their ordering key."""
    in_flight: int
    """Messages that workers hold."""
    delayed: int
    """Messages that are not due yet."""

    @property
    def to_move(self) -> int:
        """Number of messages that a move task moves."""
        return self.ready + self.delayed


def count(consumer_id: int, channel_id: int, now: datetime, most: int = MAX_COUNTED) -> QueueCounts:
    """Count a pull consumer's messages, and those of its channel that are not fanned out.

    The cost depends neither on the ready messages nor on the history: it counts up to ``most``
    delayed deliveries, and reads up to ``most`` messages twice for those not fanned out yet.
    """
    with transactions.snapshot():  # or a message that is fanned out meanwhile is in neither number
        return _count(consumer_id, channel_id, now, most)


def oldest(consumer_id: int) -> datetime | None:
    """Return when the oldest waiting message was accepted; None when nothing waits."""
    rows = by_index(Delivery.objects.all(), "delivery_list").filter(
        consumer_id=consumer_id, state=DeliveryState.QUEUED.value
    )
    return rows.order_by("id").values_list("accepted_at", flat=True).first()


def start_move(
    consumer: Consumer,
    principal: Principal,
    *,
    now: datetime,
    to_move: int,
    destination: Channel | None = None,
    max_per_second: int | None = None,
    source_arn: str = "",
    destination_arn: str = "",
) -> MoveTask:
    """Move the consumer's waiting messages to the queues where they died, or to the destination.

    `pull/backlog` executes the task. A queue can have one running task: raises Refused.
    """
    task = MoveTask(
        id=new_id(),
        consumer=consumer,
        source_arn=source_arn,
        destination_arn=destination_arn,
        destination=destination,
        max_per_second=max_per_second,
        to_move_count=to_move,
        started_at=now,
        next_due_at=now,
    )

    def write() -> None:
        Consumer.objects.select_for_update().get(id=consumer.id)  # one start at a time
        tasks = MoveTask.objects.filter(consumer_id=consumer.id)
        if tasks.filter(state=State.RUNNING).exists():
            raise Refused("There is already a task running. Only one may run for a source queue.")
        old = tasks.order_by("-id").values_list("id", flat=True)[MAX_MOVES_KEPT - 1 :]
        MoveTask.objects.filter(id__in=list(old)).delete()
        task.save(force_insert=True)
        after = {"to": _where(task), "waiting": to_move, "rate": max_per_second}
        _note("queue.move", task, principal, after)

    transactions.run(write, on_collision=reseed_ids)
    return task


def cancel_move(task_id: int, principal: Principal) -> MoveTask:
    """Stop a task; messages already moved stay where they are. Raises Refused if it has ended."""

    def write() -> MoveTask:
        tasks = MoveTask.objects.select_for_update().select_related("consumer__channel")
        task = tasks.filter(id=task_id).first()
        if task is None or task.state != State.RUNNING:
            raise Refused("Only active tasks can be cancelled.")
        task.state = State.CANCELLED
        task.save()
        _note("queue.cancel_move", task, principal, {"moved": task.moved_count})
        return task

    return transactions.run(write)


def has_work() -> bool:
    """Whether a task has something to do now."""
    return _due(clock.now()).exists()


def run() -> int:
    """Move a batch of one task; return 1, or 0 when none is due."""
    moved = transactions.run(_run, on_collision=reseed_ids)
    if moved:
        failpoints.reach("after_message_move")
    return moved


def _count(consumer_id: int, channel_id: int, now: datetime, most: int) -> QueueCounts:
    counts = Counter.read([consumer_id])[consumer_id]
    later = by_index(Delivery.objects.all(), "delivery_claim").filter(
        consumer_id=consumer_id,
        priority__in=list(LEVELS),
        due_at__gt=now,
        due_at__lt=BEHIND,
        state=DeliveryState.QUEUED.value,
    )
    delayed = len(later.values_list("id", flat=True)[:most])
    soon, later_ones = _accepted(channel_id, now, most)
    return QueueCounts(
        max(0, counts[DeliveryState.QUEUED.value] - delayed) + soon,
        counts[DeliveryState.IN_FLIGHT.value],
        delayed + later_ones,
    )


def _accepted(channel_id: int, now: datetime, most: int) -> tuple[int, int]:
    """Count messages that are not fanned out yet: due ones and delayed ones.

    If ``most`` or more wait in all channels together, it counts only among this channel's newest
    ``most`` messages.
    """
    accepted = by_index(Message.objects.all(), "message_state").filter(state=Message.State.ACCEPTED)
    rows = list(accepted.values_list("channel_id", "due_at")[:most])
    if len(rows) < most:
        dues = [due_at for owner, due_at in rows if owner == channel_id]
    else:
        messages = by_index(Message.objects.all(), "message_channel").filter(channel_id=channel_id)
        newest = messages.order_by("-id").values_list("state", "due_at")[:most]
        dues = [due_at for state, due_at in newest if state == Message.State.ACCEPTED]
    soon = sum(due_at <= now for due_at in dues)
    return soon, len(dues) - soon


def _where(task: MoveTask) -> str:
    if task.destination_arn or task.destination is None:
        return task.destination_arn
    return f"channel:{task.destination.slug}"


def _note(action: str, task: MoveTask, principal: Principal, after: dict[str, object]) -> None:
    consumer = task.consumer
    AuditEntry.record(
        principal.actor,
        action,
        f"consumer:{consumer.channel.slug}/{consumer.client_id}",
        team_id=consumer.team_id,
        reason=principal.reason,
        after=after,
    )


def _due(now: datetime) -> QuerySet[MoveTask]:
    return MoveTask.objects.filter(state=MoveTask.State.RUNNING, next_due_at__lte=now)


def _run() -> int:
    """Publish messages, finish their former rows and store the progress in one transaction."""
    now = clock.now()
    task = _due(now).select_for_update(skip_locked=True).order_by("next_due_at").first()
    if task is None:
        return 0
    limit = min(BATCH_SIZE, task.max_per_second or BATCH_SIZE)
    waiting = Delivery.objects.filter(
        consumer_id=task.consumer_id,
        state=DeliveryState.QUEUED.value,
        accepted_at__lte=task.started_at,
    )
    rows = list(waiting.order_by("id").select_for_update(skip_locked=True)[:limit])
    if not rows:
        if _is_being_fanned_out(task):
            task.next_due_at = now + SOON
        else:
            task.state = MoveTask.State.COMPLETED
        task.save()
        return 1
    messages = Message.objects.in_bulk([row.message_id for row in rows])
    contents = payloads.load(messages)
    moved: list[Delivery] = []
    for row in rows:
        message, payload = messages[row.message_id], contents[row.message_id]
        target = _target(task, payload)
        if isinstance(target, str) or payload.body is None:
            task.state = MoveTask.State.FAILED
            task.failure = target if isinstance(target, str) else UNREADABLE
            break
        publication = _publication(message, payload, payload.body)
        accept.accept(target, message.producer_id, [publication], within_quota=False)
        moved.append(row)
    cancel.take_back(moved, now, SLOT)
    task.moved_count += len(moved)
    if task.max_per_second:
        task.next_due_at = now + timedelta(seconds=len(moved) / task.max_per_second)
    task.save()
    failpoints.reach("in_message_move")
    return 1


def _is_being_fanned_out(task: MoveTask) -> bool:
    """Whether a message accepted before the task began is not fanned out yet."""
    new = Message.objects.filter(channel_id=task.consumer.channel_id, state=Message.State.ACCEPTED)
    return new.filter(accepted_at__lte=task.started_at).exists()


def _target(task: MoveTask, payload: Payload) -> ChannelConfig | str:
    """Return the channel for the message, or why the task cannot continue."""
    if task.destination is not None:
        return config_cache.channel(task.destination.slug) or UNKNOWN_SOURCE
    slug = payload.headers.get(f"{DEAD_LETTER_PREFIX}Channel", "")
    channel = config_cache.channel(slug) if slug else None
    if channel is None:
        return UNKNOWN_SOURCE
    # A message published there again would go to all of its consumers.
    return channel if len(channel.consumers) == 1 else SHARED_SOURCE


def _publication(message: Message, payload: Payload, body: bytes) -> Publication:
    return Publication(
        body,
        content_type=payload.content_type,
        event_type=message.event_type,
        priority=message.priority,
        ordering_key=message.ordering_key,
        headers={
            name: value
            for name, value in payload.headers.items()
            if not name.startswith(DEAD_LETTER_PREFIX)
        },
    )
