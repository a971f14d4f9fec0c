"""Find the channel and pull consumer of a queue's name, and define queue attributes.

A queue name that is a valid channel name is its channel's name. Another name (with capital letters,
or a leading hyphen) has a row in the table of queues; its channel's name is the name in lower case
with a digest as suffix.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from channels_app.core import names
from channels_app.models import Consumer
from channels_app.registry.cache import ChannelConfig, ConsumerConfig, config_cache
from delivery.models import Queue
from delivery.sqs import errors
from delivery.sqs.errors import SqsError

ACCOUNT = "000000000000"
"""The account id of the installation in queue URLs and ARNs. Requests may use any other."""
CLIENT_ID = "sqs"
"""Client id of the pull consumer that CreateQueue registers."""
FIFO = ".fifo"
MAX_NAME_LENGTH = 80
MAX_TAGS = 50
MAX_SIZE = 1024 * 1024
"""Maximum bytes of a message, and of a batch, with attributes."""
MAX_LEASE_S = 43_200
MAX_WAIT_S = 20
MAX_RECEIVES = 1000
MAX_SOURCES = 10
MAX_DELAY_S = 3660 * 86_400
"""SQS allows up to 900. A channel may allow less than this (``max_future_days``)."""
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.fifo)?")
_ARN = re.compile(r"arn:[a-z-]+:sqs:[a-z0-9-]*:[0-9]*:([A-Za-z0-9_.-]+)")
CHOICES = {
    "FifoQueue": ("true", "false"),
    "ContentBasedDeduplication": ("true", "false"),
    "SqsManagedSseEnabled": ("true", "false"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
FIFO_ONLY = ("ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")
COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class Number(NamedTuple):
    """A numeric attribute."""

    default: int
    least: int
    most: int


NUMBERS = {
    "VisibilityTimeout": Number(30, 0, MAX_LEASE_S),
    "MessageRetentionPeriod": Number(345_600, 60, 1_209_600),
    "DelaySeconds": Number(0, 0, MAX_DELAY_S),
    "ReceiveMessageWaitTimeSeconds": Number(0, 0, MAX_WAIT_S),
    "MaximumMessageSize": Number(MAX_SIZE, 1024, MAX_SIZE),
    "KmsDataKeyReusePeriodSeconds": Number(300, 60, 86_400),
}
SETTABLE = frozenset(
    {*NUMBERS, *CHOICES, "KmsMasterKeyId", "Policy", "RedriveAllowPolicy", "RedrivePolicy"}
)
READABLE = SETTABLE | {*COUNTS, "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn"}


class RedrivePolicy(NamedTuple):
    """Where a message goes after too many receives."""

    target: str
    """Name of the dead-letter queue."""
    arn: str
    max_receives: int


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue with its channel, consumer and row."""

    name: str
    channel: ChannelConfig
    consumer: ConsumerConfig
    row: Queue | None
    """None for a channel with a pull consumer on which no SQS client created a queue."""

    @property
    def is_fifo(self) -> bool:
        """Whether it is a FIFO queue."""
        return self.name.endswith(FIFO)

    @property
    def set_attributes(self) -> Mapping[str, str]:
        """Attributes that a client set, except those of the channel."""
        return self.row.attributes if self.row else {}

    def number(self, name: str) -> int:
        """Return a numeric attribute."""
        return int(self.set_attributes.get(name, NUMBERS[name].default))

    @property
    def max_bytes(self) -> int:
        """Maximum bytes of a message with attributes."""
        return min(self.channel.max_body_bytes, MAX_SIZE)

    @property
    def redrive(self) -> RedrivePolicy | None:
        """The redrive policy; None without one."""
        text = self.set_attributes.get("RedrivePolicy")
        return read_redrive(text) if text else None


class _Rows:
    """The table of queues, cached for the current version of the configuration. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = -1
        self._by_name: dict[str, Queue] = {}
        self._by_consumer: dict[int, Queue] = {}

    def read(self) -> tuple[dict[str, Queue], dict[int, Queue]]:
        """Return the rows by name, and by consumer id."""
        number = config_cache.refresh()
        with self._lock:
            if number != self._number:
                rows = list(Queue.objects.select_related("consumer__channel"))
                self._by_name = {row.name: row for row in rows}
                self._by_consumer = {row.consumer_id: row for row in rows}
                self._number = number
            return self._by_name, self._by_consumer


_rows = _Rows()


def find(name: str) -> QueueView:
    """Return the queue with this name. Raises SqsError."""
    row = _rows.read()[0].get(name)
    channel = config_cache.channel(row.consumer.channel.slug if row else slug_of(name))
    if channel is None:
        raise errors.no_queue()
    row = row or _rows.read()[0].get(name)  # another host may have created it just now
    if row is not None:
        consumer = config_cache.consumers([row.consumer_id]).get(row.consumer_id)
    else:
        consumer = pull_consumer(channel) if channel.slug == name else None
    if consumer is None or consumer.mode != Consumer.Mode.PULL:
        raise errors.no_queue()
    return QueueView(name, channel, consumer, row)


def every() -> Iterable[QueueView]:
    """Return all queues, by name."""
    _, by_consumer = _rows.read()
    views = []
    for channel in config_cache.channels():
        rows = [
            (by_consumer[consumer.id], consumer)
            for consumer in channel.consumers
            if consumer.id in by_consumer and consumer.mode == Consumer.Mode.PULL
        ]
        views += [QueueView(row.name, channel, consumer, row) for row, consumer in rows]
        if not rows and (consumer := pull_consumer(channel)):
            views.append(QueueView(channel.slug, channel, consumer, None))
    return sorted(views, key=lambda queue: queue.name)


def pull_consumer(channel: ChannelConfig) -> ConsumerConfig | None:
    """Return the pull consumer that is the channel's queue: ``sqs``, or the only pull consumer."""
    pulling = [consumer for consumer in channel.consumers if consumer.mode == Consumer.Mode.PULL]
    named = [consumer for consumer in pulling if consumer.client_id == CLIENT_ID]
    return named[0] if named else pulling[0] if len(pulling) == 1 else None


def name_of(channel: str, client_id: str) -> str | None:
    """Return the queue name of this consumer; None for a push consumer."""
    consumer = config_cache.consumer(channel, client_id)
    if consumer is None or consumer.mode != Consumer.Mode.PULL:
        return None
    row = _rows.read()[1].get(consumer.id)
    return row.name if row else channel


def slug_of(name: str) -> str:
    """Return the channel name for a new queue of this name."""
    if names.slug(name) is None:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name.lower().lstrip('-_') or 'queue'}.{digest}"


def check_name(name: object) -> str:
    """Check the name of a new queue. Raises SqsError."""
    if not isinstance(name, str) or not name:
        raise errors.missing("QueueName")
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        detail = (
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )
        raise SqsError("InvalidParameterValue", detail)
    return name


def name_of_url(url: object) -> str:
    """Return the queue name in a URL, of any host and account. Raises SqsError."""
    if url is None or url == "":
        raise errors.missing("QueueUrl")
    if not isinstance(url, str):
        raise SqsError("InvalidAddress", "The address of a queue is a text.")
    return url.rstrip("/").rpartition("/")[2]


def name_of_arn(arn: object, parameter: str) -> str:
    """Return the queue name in an ARN. Raises SqsError."""
    match = _ARN.fullmatch(arn) if isinstance(arn, str) else None
    if match is None:
        raise errors.invalid(parameter, arn, "It is not the ARN of a queue.")
    return match[1]


def arn_of(name: str, region: str) -> str:
    """Return a queue's ARN."""
    return f"arn:aws:sqs:{region}:{ACCOUNT}:{name}"


def read_redrive(text: str) -> RedrivePolicy:
    """Parse a redrive policy. Raises SqsError."""
    policy = _object("RedrivePolicy", text)
    receives = policy.get("maxReceiveCount")
    number = str(receives) if not isinstance(receives, bool) else ""
    if not re.fullmatch("[0-9]{1,4}", number) or not 1 <= int(number) <= MAX_RECEIVES:
        raise errors.invalid(
            "RedrivePolicy", text, f"maxReceiveCount must be from 1 to {MAX_RECEIVES}."
        )
    arn = policy.get("deadLetterTargetArn")
    return RedrivePolicy(name_of_arn(arn, "RedrivePolicy"), str(arn), int(number))


def read_allow(text: str) -> tuple[str, tuple[str, ...]]:
    """Parse a redrive allow policy: its permission, and its source queues. Raises SqsError."""
    policy = _object("RedriveAllowPolicy", text)
    permission, arns = policy.get("redrivePermission"), policy.get("sourceQueueArns", [])
    if permission not in {"allowAll", "denyAll", "byQueue"} or not isinstance(arns, list):
        raise errors.invalid(
            "RedriveAllowPolicy", text, "redrivePermission must be allowAll, denyAll or byQueue."
        )
    if (permission == "byQueue") != bool(arns) or len(arns) > MAX_SOURCES:
        raise errors.invalid(
            "RedriveAllowPolicy", text, "byQueue, and it alone, names 1 to 10 sourceQueueArns."
        )
    return permission, tuple(name_of_arn(arn, "RedriveAllowPolicy") for arn in arns)


def clean(given: object, *, is_fifo: bool) -> dict[str, str]:
    """Check attributes to set; returns them in stored form. Raises SqsError.

    An empty policy removes the stored one.
    """
    if not isinstance(given, dict):
        raise SqsError("MalformedInput", "Attributes must be a map.")
    cleaned = {name: _clean(name, value) for name, value in given.items()}
    if not is_fifo and cleaned.get("FifoQueue") == "true":
        raise SqsError("InvalidParameterValue", "The name of a FIFO queue can only end with .fifo.")
    if is_fifo and cleaned.get("FifoQueue", "true") == "false":
        raise errors.invalid("FifoQueue", "false", "The queue's name ends in .fifo.")
    for name in FIFO_ONLY:
        if name in cleaned and not is_fifo:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
    return cleaned


def shown(queue: QueueView, region: str) -> dict[str, str]:
    """Return all attributes of a queue except the counts, by name."""
    row = queue.row
    attributes = {name: str(queue.number(name)) for name in NUMBERS if not name.startswith("Kms")}
    attributes["MaximumMessageSize"] = str(queue.max_bytes)
    attributes |= {
        "QueueArn": arn_of(queue.name, region),
        "CreatedTimestamp": _seconds(row.created_at if row else None),
        "LastModifiedTimestamp": _seconds(row.updated_at if row else None),
        "SqsManagedSseEnabled": str(queue.channel.encrypt_bodies).lower(),
    }
    if queue.is_fifo:
        attributes |= {
            "FifoQueue": "true",
            "ContentBasedDeduplication": "false",
            "DeduplicationScope": "queue",
            "FifoThroughputLimit": "perQueue",
        }
    kept = {
        name: value
        for name, value in queue.set_attributes.items()
        if name not in NUMBERS or name.startswith("Kms")
    }
    return attributes | kept


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise errors.invalid(name, text, "It is not a JSON object.")
    return value


def _clean(name: str, value: object) -> str:
    if name not in SETTABLE:
        raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
    if not isinstance(value, str):
        raise SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")
    if name in NUMBERS:
        limits = NUMBERS[name]
        if not re.fullmatch("[0-9]{1,9}", value) or not (limits.least <= int(value) <= limits.most):
            raise SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")
        return str(int(value))
    if name in CHOICES and value not in CHOICES[name]:
        raise SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")
    if name == "Policy" and value:
        raise SqsError(
            "UnsupportedOperation",
            "Queues have no policies here: scopes and channels of API keys say who may use them.",
        )
    if name == "RedrivePolicy" and value:
        policy = read_redrive(value)
        return json.dumps(
            {"deadLetterTargetArn": policy.arn, "maxReceiveCount": policy.max_receives},
            separators=(",", ":"),
        )
    if name == "RedriveAllowPolicy" and value:
        read_allow(value)
    return value


def _seconds(instant: datetime | None) -> str:
    return str(int(instant.timestamp())) if instant else "0"
