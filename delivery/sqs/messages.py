"""Implement operations on messages: send, receive, delete, and change their visibility."""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Min

from channels_app.core import ids
from channels_app.core.errors import BrokerError
from channels_app.database import clock
from channels_app.ingest import accept, publication
from channels_app.ingest.accept import Publication
from channels_app.models import Message
from delivery.core.leases import Lease
from delivery.core.lifecycle import DeliveryState
from delivery.core.outcome import Outcome
from delivery.core.signing import DEAD_LETTER_PREFIX
from delivery.models import Attempt, Delivery
from delivery.pull import leasing, receiving
from delivery.pull.receiving import Deliver, ReceivedMessage, ReceiveRequest
from delivery.sqs import attributes, errors, queues
from delivery.sqs.context import Context
from delivery.sqs.errors import SqsError
from delivery.sqs.queues import (
    MAX_DELAY_S,
    MAX_LEASE_S,
    MAX_SIZE,
    MAX_WAIT_S,
    QueueView,
    name_of_url,
)
from delivery.transport import payloads

MAX_BATCH = 10
Parameters = dict[str, Any]
Result = dict[str, Any]
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_GROUP = re.compile(r"[!-~]{1,128}")
_NOT_HERE = "The request include parameter that is not valid for this queue type."
_UNIX, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def send(context: Context, parameters: Parameters) -> Result:
    """SendMessage."""
    queue = context.target(name_of_url(parameters.get("QueueUrl")), "publish")
    message = _read(context, queue, parameters, clock.now())
    (result,) = _store(context, queue, [message])
    return result


def send_batch(context: Context, parameters: Parameters) -> Result:
    """SendMessageBatch: store all valid entries in one transaction."""
    queue = context.target(name_of_url(parameters.get("QueueUrl")), "publish")
    entries = _entries(parameters)
    total = sum(_size_of_entry(entry) for entry in entries.values())
    if total > MAX_SIZE:
        detail = (
            f"Batch requests cannot be longer than {MAX_SIZE} bytes. You have sent {total} bytes."
        )
        raise SqsError("BatchRequestTooLong", detail)
    now = clock.now()
    read, failed = _each(entries, lambda entry: _read(context, queue, entry, now))
    stored = _store(context, queue, list(read.values())) if read else []
    done = [{"Id": id_, **result} for id_, result in zip(read, stored, strict=True)]
    return _batch_result(done, failed)


def receive(context: Context, parameters: Parameters) -> Result:
    """ReceiveMessage: receive, waiting up to ``WaitTimeSeconds`` for a first message."""
    queue = context.queue(parameters, "receive")
    limit = _number(parameters, "MaxNumberOfMessages", 1, 1, MAX_BATCH)
    lease_s = _number(
        parameters, "VisibilityTimeout", queue.number("VisibilityTimeout"), 0, MAX_LEASE_S
    )
    wait_s = _number(
        parameters, "WaitTimeSeconds", queue.number("ReceiveMessageWaitTimeSeconds"), 0, MAX_WAIT_S
    )
    attempt = parameters.get("ReceiveRequestAttemptId")
    if attempt is not None and not queue.is_fifo:
        raise SqsError("InvalidParameterValue", _NOT_HERE)
    receive_request = ReceiveRequest(
        most=limit,
        lease_ms=lease_s * 1000,
        worker=_worker(context, attempt),
        # A repeated attempt returns the same messages with new receipt handles.
        resume=attempt is not None,
    )
    wanted = [
        *_names(parameters, "AttributeNames"),
        *_names(parameters, "MessageSystemAttributeNames"),
    ]
    chosen = _names(parameters, "MessageAttributeNames")

    def show(received: Sequence[ReceivedMessage]) -> Result:
        if not received:
            return {}
        details = _Known(received, wanted)
        return {
            "Messages": [
                _show(message, queue, details, chosen, context.region) for message in received
            ]
        }

    return show(_wait(context, queue, receive_request, float(wait_s), show))


def delete(context: Context, parameters: Parameters) -> Result:
    """DeleteMessage: acknowledge the message."""
    queue = context.queue(parameters, "receive")
    _delete(queue, parameters)
    return {}


def delete_batch(context: Context, parameters: Parameters) -> Result:
    """DeleteMessageBatch: acknowledge messages in one transaction."""
    queue = context.queue(parameters, "receive")
    leases, failed = _each(_entries(parameters), lambda entry: _lease(queue, entry))
    done = leasing.end(list(leases.values()), Outcome.DELIVERED)
    for id_ in [id_ for id_, lease in leases.items() if lease not in done]:
        if queue.is_fifo:
            failed[id_] = _lapsed()
            del leases[id_]
    return _batch_result([{"Id": id_} for id_ in leases], failed)


def change_visibility(context: Context, parameters: Parameters) -> Result:
    """ChangeMessageVisibility: extend the lease, or release the message (0)."""
    queue = context.queue(parameters, "receive")
    _change(queue, parameters)
    return {}


def change_visibility_batch(context: Context, parameters: Parameters) -> Result:
    """ChangeMessageVisibilityBatch."""
    queue = context.queue(parameters, "receive")
    done, failed = _each(_entries(parameters), lambda entry: _change(queue, entry))
    return _batch_result([{"Id": id_} for id_ in done], failed)


class _Prepared(NamedTuple):
    """A message to store, and its checksums for the response."""

    publication: Publication
    checksums: Result


def _read(context: Context, queue: QueueView, given: Mapping[str, Any], now: datetime) -> _Prepared:
    body = _text(given, "MessageBody")
    if not attributes.is_text(body):
        detail = (
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | "
            "#x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF."
        )
        raise SqsError("InvalidMessageContents", detail)
    sent = attributes.read(given.get("MessageAttributes", {}))
    system = attributes.read_system(given.get("MessageSystemAttributes", {}))
    raw = body.encode()
    if len(raw) + attributes.size(sent) > queue.max_bytes:
        detail = (
            "One or more parameters are invalid. Reason: Message must be shorter than "
            f"{queue.max_bytes} bytes."
        )
        raise SqsError("InvalidParameterValue", detail)
    delay_s = _delay(queue, given)
    group, key = _keys(queue, given, raw)
    item = {
        "body": body,
        "content_type": attributes.content_type(sent) or None,
        "event_type": attributes.event_type(sent) or None,
        "ordering_key": group,
        "idempotency_key": key,
        "delay_ms": delay_s * 1000 or None,
    }
    try:
        message = publication.from_item(item, queue.channel, context.principal.producer, now)
    except BrokerError as problem:
        raise errors.of(problem) from None
    kept_s = delay_s + queue.number("MessageRetentionPeriod")
    message = message._replace(
        headers=attributes.to_headers(sent, system),
        expires_at=now + timedelta(seconds=kept_s),
    )
    checksums = {"MD5OfMessageBody": _md5(raw)}
    if sent:
        checksums["MD5OfMessageAttributes"] = attributes.md5(sent)
    if system:
        checksums["MD5OfMessageSystemAttributes"] = attributes.md5(system)
    return _Prepared(message, checksums)


def _delay(queue: QueueView, given: Mapping[str, Any]) -> int:
    default = queue.number("DelaySeconds")
    if queue.is_fifo and given.get("DelaySeconds") not in {None, 0}:
        raise errors.invalid("DelaySeconds", given["DelaySeconds"], _NOT_HERE)
    return default if queue.is_fifo else _number(given, "DelaySeconds", default, 0, MAX_DELAY_S)


def _keys(queue: QueueView, given: Mapping[str, Any], body: bytes) -> tuple[str | None, str | None]:
    """Return the message's ordering key and its idempotency key."""
    group, key = given.get("MessageGroupId"), given.get("MessageDeduplicationId")
    for name, value in (("MessageGroupId", group), ("MessageDeduplicationId", key)):
        if value is not None and not (isinstance(value, str) and _GROUP.fullmatch(value)):
            detail = "Can only include alphanumeric and punctuation characters. 1 to 128 in length."
            raise errors.invalid(name, value, detail)
    if not queue.is_fifo:
        if key is not None:
            raise errors.invalid("MessageDeduplicationId", key, _NOT_HERE)
        return group, None
    if group is None:
        raise errors.missing("MessageGroupId")
    if key is None:
        if queue.set_attributes.get("ContentBasedDeduplication") != "true":
            raise SqsError(
                "InvalidParameterValue",
                "The queue should either have ContentBasedDeduplication enabled or "
                "MessageDeduplicationId provided explicitly",
            )
        key = hashlib.sha256(body).hexdigest()
    return group, _scope(queue, group) + key


def _scope(queue: QueueView, group: str) -> str:
    """Return the prefix of a deduplication id: the group if ids count per group."""
    return f"{group}:" if queue.set_attributes.get("DeduplicationScope") == "messageGroup" else ""


def _store(context: Context, queue: QueueView, messages: Sequence[_Prepared]) -> list[Result]:
    principal = context.principal
    publication.check_rate(principal.producer, len(messages))
    stored = accept.accept(
        queue.channel, principal.producer_id, [message.publication for message in messages]
    )
    done = []
    for message, result in zip(messages, stored, strict=True):
        # A duplicate is a success, whatever its body: the first message stays.
        shown = {**message.checksums, "MessageId": ids.to_uuid(result.message_id)}
        if queue.is_fifo:
            shown["SequenceNumber"] = _sequence(result.message_id)
        done.append(shown)
    return done


def _wait(
    context: Context,
    queue: QueueView,
    receive_request: ReceiveRequest,
    wait_s: float,
    show: Callable[[Sequence[ReceivedMessage]], Result],
) -> list[ReceivedMessage]:
    """Return the messages that become due within ``wait_s`` seconds; [] for a postponed call."""
    defer = context.defer

    def begin() -> Deliver:
        assert defer is not None
        answer_later = defer()
        return lambda received, confirm: answer_later(lambda: show(received), confirm)

    received = receiving.receive_ignoring_outage(
        queue.consumer,
        receive_request,
        wait_s,
        owner=context.principal.owner,
        defer=begin if defer else None,
    )
    if received is None:
        raise SqsError("ServiceUnavailable", "Too many calls wait for messages already.")
    return received


def _worker(context: Context, attempt: object) -> str:
    if attempt is None:
        return context.principal.key_id
    if not (isinstance(attempt, str) and _GROUP.fullmatch(attempt)):
        detail = "Can only include alphanumeric and punctuation characters. 1 to 128 in length."
        raise errors.invalid("ReceiveRequestAttemptId", attempt, detail)
    return "attempt-" + hashlib.sha256(attempt.encode()).hexdigest()[:32]


class _Known:
    """Data for the system attributes of received messages, read with one query for all."""

    def __init__(self, received: Sequence[ReceivedMessage], wanted: Sequence[str]) -> None:
        self.wanted = set(wanted)
        self.all = "All" in self.wanted
        self.senders: dict[int, tuple[str, str]] = {}
        """Idempotency key and producer's name, by message."""
        self.first: dict[int, datetime] = {}
        """When a delivery was first received, by delivery; absent if it was not received before."""
        if self.asks("MessageDeduplicationId") or self.asks("SenderId"):
            rows = Message.objects.filter(id__in=[message.row.message_id for message in received])
            senders = rows.values_list("id", "idempotency_key", "producer__slug")
            self.senders = {id_: (key, slug or "") for id_, key, slug in senders}
        redelivered = [message.row.id for message in received if message.row.attempt > 1]
        if redelivered and self.asks("ApproximateFirstReceiveTimestamp"):
            attempts = Attempt.objects.filter(delivery_id__in=redelivered).values_list(
                "delivery_id"
            )
            self.first = dict(attempts.annotate(first=Min("started_at")))

    def asks(self, name: str) -> bool:
        """Whether the request asks for this system attribute."""
        return self.all or name in self.wanted


def _show(
    message: ReceivedMessage, queue: QueueView, details: _Known, chosen: Sequence[str], region: str
) -> Result:
    payload = message.payload
    body = payload.body
    if body is None:
        # Ten messages of maximum size are more than a response of the REST API holds.
        body = payloads.load([message.row.message_id])[message.row.message_id].body or b""
    kept = attributes.of_message(payload.headers, message.row.event_type, payload.content_type)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = base64.b64encode(body).decode()
        kept[attributes.ENCODING] = attributes.Attribute("String", "base64")
    shown: Result = {
        "MessageId": ids.to_uuid(message.row.message_id),
        "ReceiptHandle": message.token,
        "MD5OfBody": _md5(text.encode()),
        "Body": text,
    }
    if system := _system(message, queue, details, region):
        shown["Attributes"] = system
    if shown_attributes := attributes.choose(kept, chosen):
        shown["MD5OfMessageAttributes"] = attributes.md5(shown_attributes)
        shown["MessageAttributes"] = attributes.show(shown_attributes)
    return shown


def _died_in(message: ReceivedMessage, region: str) -> str:
    """Return the ARN of the queue in which the message died; '' if it was no queue."""
    channel = message.payload.headers.get(f"{DEAD_LETTER_PREFIX}Channel", "")
    name = queues.name_of(channel, message.payload.headers.get(f"{DEAD_LETTER_PREFIX}Consumer", ""))
    return queues.arn_of(name, region) if name else ""


def _system(
    message: ReceivedMessage, queue: QueueView, details: _Known, region: str
) -> dict[str, str]:
    row = message.row
    key, sender = details.senders.get(row.message_id, ("", ""))
    values = {
        "SenderId": sender or "hookstation",
        "SentTimestamp": _millis(row.accepted_at),
        "ApproximateReceiveCount": str(row.tries),
        "ApproximateFirstReceiveTimestamp": _millis(
            details.first.get(row.id) or _taken_at(message)
        ),
        "AWSTraceHeader": message.payload.headers.get(attributes.TRACE, ""),
        "MessageGroupId": row.ordering_key,
    }
    if f"{DEAD_LETTER_PREFIX}Channel" in message.payload.headers:
        values["DeadLetterQueueSourceArn"] = _died_in(message, region)
    if queue.is_fifo:
        values["MessageDeduplicationId"] = key.removeprefix(_scope(queue, row.ordering_key))
        values["SequenceNumber"] = _sequence(row.message_id)
    return {name: value for name, value in values.items() if value and details.asks(name)}


def _taken_at(message: ReceivedMessage) -> datetime:
    lease = leasing.lease_of(message.token)
    return lease.taken_at if lease else clock.now()


def _delete(queue: QueueView, given: Mapping[str, Any]) -> None:
    lease = _lease(queue, given)
    # In a standard queue an outdated receipt handle is no error, and the message stays.
    if not leasing.end([lease], Outcome.DELIVERED) and queue.is_fifo:
        raise _lapsed()


def _change(queue: QueueView, given: Mapping[str, Any]) -> None:
    lease = _lease(queue, given)
    if given.get("VisibilityTimeout") is None:
        raise errors.missing("VisibilityTimeout")
    seconds = _number(given, "VisibilityTimeout", 0, 0, MAX_LEASE_S)
    if seconds == 0:
        if not leasing.end(
            [lease], Outcome.INTERRUPTED, delay_s=0.0, error="Its holder gave it back."
        ):
            raise _not_held(lease)
        return
    done, too_long = leasing.extend([lease], seconds * 1000)
    if too_long:
        detail = (
            f"Total VisibilityTimeout for the message is beyond the limit [{MAX_LEASE_S} seconds]"
        )
        raise errors.invalid("VisibilityTimeout", seconds, detail)
    if not done:
        raise _not_held(lease)


def _lease(queue: QueueView, given: Mapping[str, Any]) -> Lease:
    handle = _text(given, "ReceiptHandle")
    lease = leasing.lease_of(handle)
    if lease is None or lease.consumer_id != queue.consumer.id:
        detail = f'The input receipt handle "{handle[:200]}" is not a valid receipt handle.'
        raise SqsError("ReceiptHandleIsInvalid", detail)
    return lease


def _lapsed() -> SqsError:
    return SqsError("InvalidParameterValue", "The receipt handle has expired.")


def _not_held(lease: Lease) -> SqsError:
    state = Delivery.objects.filter(id=lease.delivery_id).values_list("state", flat=True).first()
    if state in {DeliveryState.QUEUED.value, DeliveryState.IN_FLIGHT.value}:
        return SqsError("MessageNotInflight", "The message referred to isn't in flight.")
    detail = "Message does not exist or is not available for visibility timeout change."
    return SqsError("InvalidParameterValue", detail)


def _entries(parameters: Parameters) -> dict[str, dict[str, Any]]:
    """Return a batch's entries by id, in order. Raises SqsError."""
    given = parameters.get("Entries", [])
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise SqsError("MalformedInput", "Entries must be a list of structures.")
    if not given:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(given) > MAX_BATCH:
        detail = (
            f"Maximum number of entries per request are {MAX_BATCH}. You have sent {len(given)}."
        )
        raise SqsError("TooManyEntriesInBatchRequest", detail)
    entries: dict[str, dict[str, Any]] = {}
    for entry in given:
        id_ = _text(entry, "Id")
        if not _ENTRY_ID.fullmatch(id_):
            detail = (
                "A batch entry id can only contain alphanumeric characters, hyphens and "
                "underscores. It can be at most 80 letters long."
            )
            raise SqsError("InvalidBatchEntryId", detail)
        if id_ in entries:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {id_} repeated.")
        entries[id_] = entry
    return entries


def _each(
    entries: Mapping[str, dict[str, Any]], work: Callable[[dict[str, Any]], Any]
) -> tuple[dict[str, Any], dict[str, SqsError]]:
    """Return the results of ``work`` by entry, and the errors."""
    done: dict[str, Any] = {}
    failed: dict[str, SqsError] = {}
    for id_, entry in entries.items():
        try:
            done[id_] = work(entry)
        except SqsError as error:
            failed[id_] = error
    return done, failed


def _batch_result(done: list[Result], failed: Mapping[str, SqsError]) -> Result:
    return {
        "Successful": done,
        "Failed": [
            {
                "Id": id_,
                "SenderFault": error.is_senders,
                "Code": error.kind.query_code,
                "Message": error.message,
            }
            for id_, error in failed.items()
        ],
    }


def _size_of_entry(entry: Mapping[str, Any]) -> int:
    """Return the bytes of an entry that is not checked yet."""
    body, given = entry.get("MessageBody"), entry.get("MessageAttributes")
    size = len(body.encode("utf-8", "replace")) if isinstance(body, str) else 0
    for name, value in given.items() if isinstance(given, dict) else ():
        texts: Iterable[Any] = value.values() if isinstance(value, dict) else ()
        size += len(name) + sum(len(text) for text in texts if isinstance(text, str))
    return size


def _names(parameters: Parameters, name: str) -> list[str]:
    given = parameters.get(name, [])
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise SqsError("MalformedInput", f"{name} must be a list of texts.")
    return given


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if value is None or value == "":
        raise errors.missing(name)
    if not isinstance(value, str):
        raise SqsError("MalformedInput", f"{name} must be a text.")
    return value


def _number(given: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = given.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise SqsError("MalformedInput", f"{name} must be a whole number.")
    if not least <= value <= most:
        detail = f"Must be between {least} and {most}, if provided."
        raise errors.invalid(name, value, detail)
    return value


def _sequence(message_id: int) -> str:
    """Return the sequence number. Message ids rise with time, so they keep the order in a group."""
    return f"{message_id:020d}"


def _millis(instant: datetime) -> str:
    return str((instant - _UNIX) // _MILLISECOND)


def _md5(raw: bytes) -> str:
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()
