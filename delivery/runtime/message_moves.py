"""Move messages from a dead-letter queue to where they died, or to another queue (S0-77)."""

from datetime import datetime, timedelta

from django.db.models import QuerySet

from channels_app import clock, failpoints, transactions
from channels_app.config_cache import ChannelConfig, config_cache
from channels_app.models import Message, new_id
from channels_app.steps import accept
from channels_app.steps.accept import Publication
from delivery.models import Delivery, MoveTask
from delivery.rules.dead_letters import PREFIX
from delivery.rules.lifecycle import DeliveryState
from delivery.steps import cancel, payloads
from delivery.steps.payloads import Payload

BATCH_SIZE = 20
"""Bodies in memory at one time; each may be as large as MAX_BODY_BYTES."""
SOON = timedelta(milliseconds=500)
SLOT = 15
"""The sweeps' slot of the counters."""
UNKNOWN_SOURCE = "A message does not name the queue in which it died: name a destination."
SHARED_SOURCE = "A message died in a channel that has several consumers: replay it there."
UNREADABLE = "A message cannot be read."


def has_work() -> bool:
    """Whether a task has something to do now."""
    return _due(clock.now()).exists()


def run() -> int:
    """Move a batch of one task; return 1, or 0 when none is due."""
    moved = transactions.run(_run, on_collision=new_id.reseed)
    if moved:
        failpoints.reach("after_message_move")
    return moved


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
    moved: list[tuple[int, int]] = []
    for row in rows:
        message, payload = messages[row.message_id], contents[row.message_id]
        target = _target(task, payload)
        if isinstance(target, str) or payload.body is None:
            task.state = MoveTask.State.FAILED
            task.failure = target if isinstance(target, str) else UNREADABLE
            break
        publication = _publication(message, payload, payload.body)
        accept.accept(target, message.producer_id, [publication], within_quota=False)
        moved.append((row.id, row.consumer_id))
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
    slug = payload.headers.get(f"{PREFIX}Channel", "")
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
            name: value for name, value in payload.headers.items() if not name.startswith(PREFIX)
        },
    )
