"""Map the service's operations to functions by name."""

from collections.abc import Callable, Mapping
from typing import Any

from delivery.sqs import management, messages, moves
from delivery.sqs.context import Context

OPERATIONS: Mapping[str, Callable[[Context, dict[str, Any]], dict[str, Any]]] = {
    "AddPermission": management.refuse_permission,
    "CancelMessageMoveTask": moves.cancel,
    "ChangeMessageVisibility": messages.change_visibility,
    "ChangeMessageVisibilityBatch": messages.change_visibility_batch,
    "CreateQueue": management.create,
    "DeleteMessage": messages.delete,
    "DeleteMessageBatch": messages.delete_batch,
    "DeleteQueue": management.delete,
    "GetQueueAttributes": management.get_attributes,
    "GetQueueUrl": management.get_url,
    "ListDeadLetterSourceQueues": management.list_sources,
    "ListMessageMoveTasks": moves.list_tasks,
    "ListQueueTags": management.list_tags,
    "ListQueues": management.list_queues,
    "PurgeQueue": management.purge,
    "ReceiveMessage": messages.receive,
    "RemovePermission": management.refuse_permission,
    "SendMessage": messages.send,
    "SendMessageBatch": messages.send_batch,
    "SetQueueAttributes": management.set_attributes,
    "StartMessageMoveTask": moves.start,
    "TagQueue": management.tag,
    "UntagQueue": management.untag,
}
