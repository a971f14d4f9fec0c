"""Count a pull consumer's waiting messages, and move those of a dead-letter queue (S0-77)."""

from datetime import datetime
from typing import NamedTuple

from channels_app import transactions
from channels_app.errors import Refused
from channels_app.models import AuditEntry, Channel, Consumer, Message, new_id
from channels_app.models.hints import by_index
from delivery.models import Counter, Delivery, MoveTask
from delivery.rules.fair_sharing import LEVELS
from delivery.rules.lanes import BEHIND
from delivery.rules.lifecycle import DeliveryState
from delivery.rules.principal import Principal

MAX_COUNTED = 10_000
"""Most rows counted one by one for programs: delayed messages, or those not fanned out."""
MAX_MOVES_KEPT = 10
"""Move tasks that are kept for each queue."""
MAX_PER_SECOND = 500
"""The highest rate of a move task, in messages per second. A task without a rate has no limit."""
State = MoveTask.State


class Waiting(NamedTuple):
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


def count(consumer_id: int, channel_id: int, now: datetime, most: int = MAX_COUNTED) -> Waiting:
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

    `runtime/message_moves` executes the task. A queue can have one running task: raises Refused.
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
        mine = MoveTask.objects.filter(consumer_id=consumer.id)
        if mine.filter(state=State.RUNNING).exists():
            raise Refused("There is already a task running. Only one may run for a source queue.")
        old = mine.order_by("-id").values_list("id", flat=True)[MAX_MOVES_KEPT - 1 :]
        MoveTask.objects.filter(id__in=list(old)).delete()
        task.save(force_insert=True)
        after = {"to": _where(task), "waiting": to_move, "rate": max_per_second}
        _note("queue.move", task, principal, after)

    transactions.run(write, on_collision=new_id.reseed)
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


def _count(consumer_id: int, channel_id: int, now: datetime, most: int) -> Waiting:
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
    return Waiting(
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
        mine = by_index(Message.objects.all(), "message_channel").filter(channel_id=channel_id)
        newest = mine.order_by("-id").values_list("state", "due_at")[:most]
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
