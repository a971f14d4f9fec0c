"""Implement operations on queues: create, delete, list, attributes, tags, purge."""

import base64
from binascii import Error as BadBase64
from collections.abc import Sequence
from typing import Any

from django.db.models import Q

from channels_app.core.errors import PreconditionFailed
from channels_app.core.http import ALWAYS, Precondition
from channels_app.database import clock, transactions
from channels_app.models import AuditEntry, Consumer, Message
from channels_app.registry import channels, consumers
from channels_app.registry.cache import ConsumerConfig, config_cache
from delivery.core.leases import Lease
from delivery.core.lifecycle import DeliveryState
from delivery.core.outcome import Outcome
from delivery.models import Delivery, Queue
from delivery.pull import backlog, leasing
from delivery.pull.backlog import QueueCounts
from delivery.queue import cancel
from delivery.sqs import attributes, errors, queues
from delivery.sqs.context import ANY_SCOPE, Context
from delivery.sqs.errors import SqsError
from delivery.sqs.queues import CLIENT_ID, COUNTS, MAX_TAGS, QueueView

MAX_RESULTS = 1000
PURGE_ROWS = 500
DEDUPLICATION_S = 300
"""Seconds for which a FIFO queue remembers a deduplication id."""
Parameters = dict[str, Any]
Result = dict[str, Any]
_CHANNELS = frozenset({"FifoQueue", "MaximumMessageSize", "SqsManagedSseEnabled"})
"""Attributes of the channel, or given by the name."""


def create(context: Context, parameters: Parameters) -> Result:
    """CreateQueue: register the channel, if there is none, and its pull consumer.

    Repeating a call with the same attributes changes nothing; other attributes are refused.
    """
    name = queues.check_name(parameters.get("QueueName"))
    given = queues.clean(parameters.get("Attributes", {}), is_fifo=name.endswith(queues.FIFO))
    tags = _tags(parameters.get("Tags", {}))
    context.authorize("register")
    try:
        queue = context.named(name, "register")
    except SqsError as error:
        if error.name != "QueueDoesNotExist":
            raise
        queue = None
    if queue is None or (queue.row is None and _is_as_created(queue.consumer, name, given)):
        _create(context, name, given, tags)
        return {"QueueUrl": context.url_of(name)}
    shown = queues.shown(queue, context.region)
    for attribute, value in given.items():
        if shown.get(attribute, "false" if attribute == "FifoQueue" else "") != value:
            raise _exists(attribute)
    return {"QueueUrl": context.url_of(queue.name)}


def delete(context: Context, parameters: Parameters) -> Result:
    """DeleteQueue: retire the pull consumer. The channel and delivered messages stay."""
    queue = context.queue(parameters, "register")
    channel, client_id = queue.channel.slug, queue.consumer.client_id
    _purge(context, queue)
    if queue.row:
        queue.row.delete()
    consumers.retire(
        channel,
        client_id,
        principal=context.principal.because("The queue was deleted."),
    )
    return {}


def get_url(context: Context, parameters: Parameters) -> Result:
    """GetQueueUrl."""
    name = parameters.get("QueueName")
    if not isinstance(name, str) or not name:
        raise errors.missing("QueueName")
    return {"QueueUrl": context.url_of(context.target(name, *ANY_SCOPE).name)}


def list_queues(context: Context, parameters: Parameters) -> Result:
    """ListQueues, by name."""
    context.authorize(*ANY_SCOPE)
    prefix = parameters.get("QueueNamePrefix", "")
    if not isinstance(prefix, str):
        raise SqsError("MalformedInput", "QueueNamePrefix must be a text.")
    names = [
        queue.name
        for queue in queues.every()
        if queue.name.startswith(prefix) and context.receives(queue)
    ]
    return _page(context, parameters, names, "QueueUrls")


def list_sources(context: Context, parameters: Parameters) -> Result:
    """ListDeadLetterSourceQueues: list the queues whose redrive policy names this one."""
    target = context.queue(parameters, *ANY_SCOPE)
    names = [queue.name for queue in sources_of(target.name) if context.receives(queue)]
    return _page(context, parameters, names, "queueUrls")


def sources_of(name: str) -> list[QueueView]:
    """Return the queues whose redrive policy names this one."""
    redrives = ((queue, queue.redrive) for queue in queues.every())
    return [queue for queue, redrive in redrives if redrive and redrive.target == name]


def get_attributes(context: Context, parameters: Parameters) -> Result:
    """GetQueueAttributes."""
    queue = context.queue(parameters, *ANY_SCOPE)
    wanted = parameters.get("AttributeNames", [])
    if not isinstance(wanted, list):
        raise SqsError("MalformedInput", "AttributeNames must be a list of texts.")
    if unknown := [name for name in wanted if name != "All" and name not in queues.READABLE]:
        raise SqsError("InvalidAttributeName", f"Unknown Attribute {unknown[0]}.")
    is_all = "All" in wanted
    attributes = queues.shown(queue, context.region) if wanted else {}
    if is_all or any(name in wanted for name in COUNTS):
        attributes |= _counts(queue)
    chosen = {name: value for name, value in attributes.items() if is_all or name in wanted}
    return {"Attributes": chosen} if chosen else {}


def set_attributes(context: Context, parameters: Parameters) -> Result:
    """SetQueueAttributes: set the given attributes."""
    queue = context.queue(parameters, "register")
    if not parameters.get("Attributes"):
        raise errors.missing("Attributes")
    given = queues.clean(parameters["Attributes"], is_fifo=queue.is_fifo)
    if "FifoQueue" in given and given["FifoQueue"] != str(queue.is_fifo).lower():
        raise SqsError("InvalidAttributeName", "Unknown Attribute FifoQueue.")
    _check_redrive(context, queue.name, given, queue.is_fifo)
    _set(context, queue, given)
    return {}


def tag(context: Context, parameters: Parameters) -> Result:
    """TagQueue."""
    queue = context.queue(parameters, "register")
    given = _tags(parameters.get("Tags", {}))
    if not given:
        raise errors.missing("Tags")
    row = _row(queue)
    row.tags = _checked({**row.tags, **given})
    row.save()
    return {}


def untag(context: Context, parameters: Parameters) -> Result:
    """UntagQueue."""
    queue = context.queue(parameters, "register")
    names = parameters.get("TagKeys")
    if not isinstance(names, list) or not names:
        raise errors.missing("TagKeys")
    row = _row(queue)
    row.tags = {name: value for name, value in row.tags.items() if name not in names}
    row.save()
    return {}


def list_tags(context: Context, parameters: Parameters) -> Result:
    """ListQueueTags."""
    queue = context.queue(parameters, *ANY_SCOPE)
    return {"Tags": queue.row.tags} if queue.row and queue.row.tags else {}


def purge(context: Context, parameters: Parameters) -> Result:
    """PurgeQueue: cancel all waiting and leased messages."""
    _purge(context, context.queue(parameters, "receive"))
    return {}


def refuse_permission(context: Context, parameters: Parameters) -> Result:
    """AddPermission and RemovePermission: refuse them, since they refer to AWS accounts."""
    context.queue(parameters, "register")
    raise SqsError(
        "UnsupportedOperation",
        "Queues have no permissions here: scopes and channels of API keys say who may use them.",
    )


def waiting(queue: QueueView) -> QueueCounts:
    """Return the number of the queue's messages."""
    return backlog.count(queue.consumer.id, queue.channel.id, clock.now())


def _tags(given: object) -> dict[str, str]:
    if not isinstance(given, dict):
        raise SqsError("MalformedInput", "Tags must be a map.")
    for name, value in given.items():
        if not (isinstance(value, str) and 1 <= len(name) <= 128 and len(value) <= 256):
            raise errors.invalid(
                "Tags", name[:128], "1 to 128 and 0 to 256 characters are allowed."
            )
        if not (attributes.is_text(name) and attributes.is_text(value)):
            raise errors.invalid("Tags", name, "It has characters that are not allowed.")
    return _checked(given)


def _checked(tags: dict[str, str]) -> dict[str, str]:
    if len(tags) > MAX_TAGS:
        raise SqsError("OverLimit", f"A queue has at most {MAX_TAGS} tags.")
    return tags


def _is_as_created(consumer: ConsumerConfig, name: str, given: dict[str, str]) -> bool:
    """Whether the consumer is what CreateQueue registers for a queue with these attributes."""
    wanted = _of_consumer(given)
    letters = wanted["dead_letter_channel"] and config_cache.channel(wanted["dead_letter_channel"])
    return (
        consumer.client_id == CLIENT_ID
        and consumer.mode == Consumer.Mode.PULL
        and consumer.ordering == name.endswith(queues.FIFO)
        and consumer.lapsed_leases == wanted["lapsed_leases"]
        and consumer.retry.max_attempts == wanted["max_attempts"]
        and consumer.dead_letter_channel_id == (letters.id if letters else None)
    )


def _of_consumer(given: dict[str, str]) -> dict[str, Any]:
    """Return settings of the pull consumer.

    Each receive counts as an attempt, and a released message is due at once.
    """
    policy = given.get("RedrivePolicy")
    redrive = queues.read_redrive(policy) if policy else None
    return {
        "retry": [0],
        "lapsed_leases": "charged",
        "max_attempts": redrive.max_receives if redrive else queues.MAX_RECEIVES,
        "dead_letter_channel": queues.find(redrive.target).channel.slug if redrive else None,
    }


def _create(context: Context, name: str, given: dict[str, str], tags: dict[str, str]) -> None:
    """Register channel and consumer, then store the row; go on where another call broke off.

    Of calls at the same time one registers the consumer and one stores the row. The others compare.
    Registering refuses the consumer of another team.
    """
    _check_redrive(context, name, given, name.endswith(queues.FIFO))
    slug = queues.slug_of(name)
    consumer = config_cache.consumer(slug, CLIENT_ID)
    if consumer is None or not context.principal.owns(consumer.team_id):
        try:
            consumer_id = _register(context, name, given)
        except PreconditionFailed:  # registered by a call at the same time
            config_cache.refresh(now=True)
            consumer = config_cache.consumer(slug, CLIENT_ID)
    if consumer is not None:
        if not _is_as_created(consumer, name, given):
            raise _exists("RedrivePolicy")
        consumer_id = consumer.id
    kept = {key: value for key, value in given.items() if key not in _CHANNELS}

    def store() -> None:
        row = Queue.objects.filter(Q(consumer_id=consumer_id) | Q(name=name)).first()
        if row is None:
            Queue(name=name, consumer_id=consumer_id, attributes=kept, tags=tags).save()
        elif differing := row.attributes.items() ^ kept.items():
            raise _exists(min(differing)[0])

    transactions.run(store, on_collision=lambda: None)


def _check_redrive(context: Context, name: str, given: dict[str, str], is_fifo: bool) -> None:
    text = given.get("RedrivePolicy")
    if not text:
        return
    policy = queues.read_redrive(text)
    try:
        target = context.named(policy.target, "register")
    except SqsError:
        reason = "Dead letter target does not exist."
        raise errors.invalid("RedrivePolicy", text, reason) from None
    if target.is_fifo != is_fifo:
        reason = "Dead-letter queue must be same type of queue as the source."
        raise errors.invalid("RedrivePolicy", text, reason)
    allowed = target.set_attributes.get("RedriveAllowPolicy")
    permission, sources = queues.read_allow(allowed) if allowed else ("allowAll", ())
    if permission == "denyAll" or (permission == "byQueue" and name not in sources):
        reason = "Queue does not have permission to use the dead-letter queue."
        raise errors.invalid("RedrivePolicy", text, reason)


def _register(context: Context, name: str, given: dict[str, str]) -> int:
    """Register the channel, if there is none, and the consumer; return the consumer's id.

    Raises PreconditionFailed if the consumer exists.
    """
    is_fifo, slug = name.endswith(queues.FIFO), queues.slug_of(name)
    principal = context.principal.because("CreateQueue")
    if config_cache.channel(slug) is None:
        context.authorize("admin")
        values: dict[str, Any] = {"kind": "queue", **_of_channel(given)}
        if is_fifo:
            # As in SQS: one window and one set of deduplication ids for all senders.
            values |= {"idempotency_window_s": DEDUPLICATION_S, "idempotency_scope": "channel"}
        channels.put(slug, values, principal=principal)
    elif _of_channel(given):
        context.authorize("admin")
        channels.patch(slug, _of_channel(given), principal=principal)
    # A deleted queue left its retired consumer, and perhaps its row.
    of_former = Q(consumer__channel__slug=slug, consumer__client_id=CLIENT_ID) | Q(name=name)
    Queue.objects.filter(of_former, consumer__state=Consumer.State.RETIRED).delete()
    done = consumers.put(
        slug,
        CLIENT_ID,
        {"mode": "pull", "ordering": is_fifo, **_of_consumer(given)},
        principal=principal,
        condition=Precondition(must_be_new=True),
    )
    return done.row.id


def _of_channel(given: dict[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if "MaximumMessageSize" in given:
        settings["max_body_bytes"] = int(given["MaximumMessageSize"])
    if "SqsManagedSseEnabled" in given:
        settings["encrypt_bodies"] = given["SqsManagedSseEnabled"] == "true"
    return settings


def _exists(attribute: str) -> SqsError:
    detail = (
        f"A queue already exists with the same name and a different value for attribute {attribute}"
    )
    return SqsError("QueueNameExists", detail)


def _purge(context: Context, queue: QueueView) -> None:
    """Cancel waiting and leased deliveries, and accepted messages that are not fanned out yet."""
    principal, now = context.principal.because("PurgeQueue"), clock.now()
    consumer_id = queue.consumer.id
    fresh = Message.objects.filter(channel_id=queue.channel.id, state=Message.State.ACCEPTED)
    if len(queue.channel.consumers) > 1:
        fresh = fresh.none()  # other consumers need them too
    while keys := list(
        fresh.filter(accepted_at__lte=now).values_list("id", flat=True)[:PURGE_ROWS]
    ):
        cancel.cancel_messages(dict.fromkeys(keys, ALWAYS), principal, now=now)
    count = 0
    while cancelled := cancel.cancel_waiting(consumer_id, now=now, limit=PURGE_ROWS):
        count += cancelled
    held = Delivery.objects.filter(
        consumer_id=consumer_id, state=DeliveryState.IN_FLIGHT.value
    ).order_by("id")
    after = 0
    while rows := list(held.filter(id__gt=after)[:PURGE_ROWS]):
        after = rows[-1].id
        count += len(leasing.end([_lease_of(row) for row in rows], Outcome.EXPIRED))
    transactions.run(
        lambda: AuditEntry.record(
            principal.actor,
            "queue.purge",
            f"consumer:{queue.channel.slug}/{queue.consumer.client_id}",
            team_id=queue.consumer.team_id,
            reason=principal.reason,
            after={"cancelled": count},
        )
    )


def _lease_of(row: Delivery) -> Lease:
    """Return the delivery's lease, with the fields that settling needs."""
    return Lease(
        delivery_id=row.id,
        consumer_id=row.consumer_id,
        attempt=row.attempt_count,
        failure_count=row.failure_count,
        interruption_count=row.interruption_count,
        accepted_at=row.accepted_at,
        taken_at=clock.now(),
        worker="",
        ordering_key=row.ordering_key,
    )


def _page(context: Context, parameters: Parameters, names: Sequence[str], key: str) -> Result:
    """Return a page of queue URLs; without MaxResults the first thousand, and no token."""
    limit, token = parameters.get("MaxResults"), parameters.get("NextToken")
    if limit is not None and not (
        isinstance(limit, int) and not isinstance(limit, bool) and 1 <= limit <= MAX_RESULTS
    ):
        raise errors.invalid("MaxResults", limit, f"Must be between 1 and {MAX_RESULTS}.")
    if token is not None:
        if limit is None:
            raise errors.missing("MaxResults")
        after = _after(token)
        names = [name for name in names if name > after]
    page = names[: limit or MAX_RESULTS]
    result: Result = {key: [context.url_of(name) for name in page]}
    if limit is not None and len(names) > limit:
        result["NextToken"] = base64.urlsafe_b64encode(page[-1].encode()).decode()
    # SQS omits an empty list of queues.
    return result if page or key == "queueUrls" else {}


def _after(token: object) -> str:
    try:
        return base64.urlsafe_b64decode(str(token).encode()).decode()
    except (BadBase64, ValueError):
        raise errors.invalid("NextToken", token, "It is not one that was given out.") from None


def _counts(queue: QueueView) -> dict[str, str]:
    return dict(zip(COUNTS, map(str, waiting(queue)), strict=True))


def _set(context: Context, queue: QueueView, given: dict[str, str]) -> None:
    if of_channel := _of_channel(given):
        context.authorize("admin")
        channels.patch(queue.channel.slug, of_channel, principal=context.principal)
    if "RedrivePolicy" in given:
        consumers.patch(
            queue.channel.slug,
            queue.consumer.client_id,
            _of_consumer(given),
            principal=context.principal,
        )
    row = _row(queue)
    kept = {name: value for name, value in given.items() if name not in _CHANNELS}
    merged = {**row.attributes, **kept}
    row.attributes = {name: value for name, value in merged.items() if value}
    row.save()


def _row(queue: QueueView) -> Queue:
    """Return the queue's row, or a new one for a channel that has none."""
    return queue.row or Queue(name=queue.name, consumer_id=queue.consumer.id)
