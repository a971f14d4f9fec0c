"""Implement message move tasks from a dead-letter queue to its sources or to another queue."""

from typing import Any

from channels_app.core import ids
from channels_app.core.errors import Refused
from channels_app.database import clock
from channels_app.models import Channel, Consumer
from channels_app.registry.cache import config_cache
from delivery.models import MoveTask
from delivery.pull import backlog
from delivery.pull.backlog import MAX_PER_SECOND
from delivery.sqs import errors, management, queues
from delivery.sqs.context import Context
from delivery.sqs.errors import SqsError
from delivery.sqs.queues import QueueView

MAX_LISTED = backlog.MAX_MOVES_KEPT
Parameters = dict[str, Any]
Result = dict[str, Any]
State = MoveTask.State


def start(context: Context, parameters: Parameters) -> Result:
    """StartMessageMoveTask: start a task, one per queue at a time. It continues after a crash."""
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
    waiting = management.waiting(queue)
    try:
        task = backlog.start_move(
            Consumer.objects.select_related("channel").get(id=queue.consumer.id),
            context.principal.because("StartMessageMoveTask"),
            now=clock.now(),
            to_move=waiting.to_move,
            destination=destination,
            max_per_second=rate,
            source_arn=parameters["SourceArn"],
            destination_arn=parameters.get("DestinationArn") or "",
        )
    except Refused as refused:
        raise SqsError("UnsupportedOperation", refused.detail) from None
    return {"TaskHandle": _handle(task)}


def cancel(context: Context, parameters: Parameters) -> Result:
    """CancelMessageMoveTask: stop the task. Moved messages stay moved."""
    context.authorize("replay")
    handle = parameters.get("TaskHandle")
    if not isinstance(handle, str) or not handle:
        raise errors.missing("TaskHandle")
    number = ids.from_public(ids.MOVE, handle)
    tasks = MoveTask.objects.select_related("consumer__channel")
    task = tasks.filter(id=number).first() if number is not None else None
    if task is None:
        raise _no_task()
    context.named(_name(task), "replay")
    try:
        done = backlog.cancel_move(task.id, context.principal.because("CancelMessageMoveTask"))
    except Refused as refused:
        raise SqsError("UnsupportedOperation", refused.detail) from None
    return {"ApproximateNumberOfMessagesMoved": done.moved_count}


def list_tasks(context: Context, parameters: Parameters) -> Result:
    """ListMessageMoveTasks: list a queue's tasks, newest first."""
    queue = _source(context, parameters)
    limit = parameters.get("MaxResults", 1)
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_LISTED:
        raise errors.invalid("MaxResults", limit, f"Must be between 1 and {MAX_LISTED}.")
    rows = MoveTask.objects.filter(consumer_id=queue.consumer.id).select_related(
        "consumer__channel", "destination"
    )
    return {"Results": [_show(row, context.region) for row in rows.order_by("-id")[:limit]]}


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


def _name(task: MoveTask) -> str:
    """Return the name of the source queue. Raises SqsError."""
    if task.source_arn:
        return queues.name_of_arn(task.source_arn, "SourceArn")
    consumer = task.consumer
    return queues.name_of(consumer.channel.slug, consumer.client_id) or consumer.channel.slug


def _target_arn(task: MoveTask, region: str) -> str:
    """Return the destination as given; for a task started in the console, the channel's queue."""
    if task.destination_arn or task.destination is None:
        return task.destination_arn
    channel = config_cache.channel(task.destination.slug)
    consumer = queues.pull_consumer(channel) if channel else None
    slug = task.destination.slug
    name = queues.name_of(slug, consumer.client_id) if consumer else None
    return queues.arn_of(name or slug, region)


def _show(task: MoveTask, region: str) -> Result:
    shown: Result = {
        "Status": task.state,
        "SourceArn": task.source_arn or queues.arn_of(_name(task), region),
        "ApproximateNumberOfMessagesMoved": task.moved_count,
        "ApproximateNumberOfMessagesToMove": task.to_move_count,
        "StartedTimestamp": int(task.started_at.timestamp() * 1000),
    }
    if task.state == State.RUNNING:
        shown["TaskHandle"] = _handle(task)
    if target := _target_arn(task, region):
        shown["DestinationArn"] = target
    if task.max_per_second:
        shown["MaxNumberOfMessagesPerSecond"] = task.max_per_second
    if task.failure:
        shown["FailureReason"] = task.failure
    return shown


def _handle(task: MoveTask) -> str:
    return ids.to_public(ids.MOVE, task.id)


def _no_task() -> SqsError:
    return SqsError("ResourceNotFoundException", "Task does not exist.")


def _no_source() -> SqsError:
    detail = "The resource that you specified for the SourceArn parameter doesn't exist."
    return SqsError("ResourceNotFoundException", detail)
