"""Message move tasks: from a dead-letter queue back to its sources, or to another queue."""

from typing import Any

from channels_app import clock, transactions
from channels_app.models import AuditEntry, Channel, Consumer, new_id
from channels_app.rules import ids
from delivery.models import MoveTask
from delivery.sqs import errors, management, queues
from delivery.sqs.context import Context
from delivery.sqs.errors import SqsError
from delivery.sqs.queues import QueueView

MAX_PER_SECOND = 500
MAX_LISTED = 10
Parameters = dict[str, Any]
Result = dict[str, Any]
State = MoveTask.State


def start(context: Context, parameters: Parameters) -> Result:
    """StartMessageMoveTask. One task of a queue runs at a time, and carries on after a crash."""
    queue = _source(context, parameters)
    if not management.sources_of(queue.name):
        detail = "Source queue must be configured as a Dead Letter Queue."
        raise SqsError("InvalidParameterValue", detail)
    rate = parameters.get("MaxNumberOfMessagesPerSecond")
    if rate is not None and not (
        isinstance(rate, int) and not isinstance(rate, bool) and 1 <= rate <= MAX_PER_SECOND
    ):
        reason = f"Must be between 1 and {MAX_PER_SECOND}."
        raise errors.invalid("MaxNumberOfMessagesPerSecond", rate, reason)
    destination = _destination(context, queue, parameters.get("DestinationArn"))
    now, consumer_id = clock.now(), queue.consumer.id
    task = MoveTask(
        id=new_id(),
        consumer_id=consumer_id,
        source_arn=parameters["SourceArn"],
        destination_arn=parameters.get("DestinationArn") or "",
        destination=destination,
        max_per_second=rate,
        to_move_count=management.count_waiting(queue),
        started_at=now,
        next_due_at=now,
    )
    transactions.run(lambda: _save(context, queue, task), on_collision=new_id.reseed)
    return {"TaskHandle": _handle(task)}


def cancel(context: Context, parameters: Parameters) -> Result:
    """CancelMessageMoveTask: what was moved stays where it is."""
    context.authorize("replay")
    handle = parameters.get("TaskHandle")
    if not isinstance(handle, str) or not handle:
        raise errors.missing("TaskHandle")
    number = ids.from_public(ids.MOVE, handle)
    task = MoveTask.objects.filter(id=number).first() if number is not None else None
    if task is None:
        raise _no_task()
    context.named(queues.name_of_arn(task.source_arn, "SourceArn"), "replay")

    def write() -> MoveTask | None:
        found = MoveTask.objects.select_for_update().get(id=task.id)
        if found.state != State.RUNNING:
            return None
        found.state = State.CANCELLED
        found.save()
        return found

    done = transactions.run(write)
    if done is None:
        detail = "Only active tasks can be cancelled."
        raise SqsError("UnsupportedOperation", detail)
    return {"ApproximateNumberOfMessagesMoved": done.moved_count}


def list_tasks(context: Context, parameters: Parameters) -> Result:
    """ListMessageMoveTasks: the newest ones of a queue, first."""
    queue = _source(context, parameters)
    limit = parameters.get("MaxResults", 1)
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_LISTED:
        raise errors.invalid("MaxResults", limit, f"Must be between 1 and {MAX_LISTED}.")
    rows = MoveTask.objects.filter(consumer_id=queue.consumer.id).order_by("-id")
    return {"Results": [_show(row) for row in rows[:limit]]}


def _save(context: Context, queue: QueueView, task: MoveTask) -> None:
    Consumer.objects.select_for_update().get(id=task.consumer_id)  # one start after the other
    mine = MoveTask.objects.filter(consumer_id=task.consumer_id)
    if mine.filter(state=State.RUNNING).exists():
        detail = "There is already a task running. Only one may run for a source queue."
        raise SqsError("UnsupportedOperation", detail)
    old = mine.order_by("-id").values_list("id", flat=True)[MAX_LISTED - 1 :]
    MoveTask.objects.filter(id__in=list(old)).delete()
    task.save(force_insert=True)
    AuditEntry.record(
        context.caller.actor,
        "queue.move",
        f"consumer:{queue.channel.slug}/{queue.consumer.client_id}",
        team_id=queue.consumer.team_id,
        reason="StartMessageMoveTask",
        after={"to": task.destination_arn, "waiting": task.to_move_count},
    )


def _source(context: Context, parameters: Parameters) -> QueueView:
    if not parameters.get("SourceArn"):
        raise errors.missing("SourceArn")
    name = queues.name_of_arn(parameters["SourceArn"], "SourceArn")
    try:
        return context.named(name, "replay")
    except SqsError as error:
        if error.name != "QueueDoesNotExist":
            raise
        raise _no_source() from None


def _destination(context: Context, queue: QueueView, arn: object) -> Channel | None:
    if not arn:
        return None
    try:
        target = context.target(queues.name_of_arn(arn, "DestinationArn"), "publish")
    except SqsError as error:
        if error.name != "QueueDoesNotExist":
            raise
        raise _no_source() from None
    if target.name == queue.name or target.is_fifo != queue.is_fifo:
        reason = "It is the source, or not of the source's type."
        raise errors.invalid("DestinationArn", arn, reason)
    return Channel.objects.get(id=target.channel.id)


def _show(task: MoveTask) -> Result:
    found: Result = {
        "Status": task.state,
        "SourceArn": task.source_arn,
        "ApproximateNumberOfMessagesMoved": task.moved_count,
        "ApproximateNumberOfMessagesToMove": task.to_move_count,
        "StartedTimestamp": int(task.started_at.timestamp() * 1000),
    }
    if task.state == State.RUNNING:
        found["TaskHandle"] = _handle(task)
    if task.destination_arn:
        found["DestinationArn"] = task.destination_arn
    if task.max_per_second:
        found["MaxNumberOfMessagesPerSecond"] = task.max_per_second
    if task.failure:
        found["FailureReason"] = task.failure
    return found


def _handle(task: MoveTask) -> str:
    return ids.to_public(ids.MOVE, task.id)


def _no_task() -> SqsError:
    return SqsError("ResourceNotFoundException", "Task does not exist.")


def _no_source() -> SqsError:
    detail = "The resource that you specified for the SourceArn parameter doesn't exist."
    return SqsError("ResourceNotFoundException", detail)
