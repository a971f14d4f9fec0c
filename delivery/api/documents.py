"""Describe parameters, bodies and responses of operations for OpenAPI.

The docstrings of the views describe what operations do, the serializers what they take and show.
"""

from drf_spectacular.utils import OpenApiParameter

from channels_app.api.openapi import (
    BYTES,
    CHANNEL,
    CLIENT_ID,
    ETAG,
    IF_MATCH,
    JSON,
    LIST,
    MAYBE_TEXT,
    READING,
    component,
    operation,
    page_of,
    queries,
    query,
    record,
    shown,
    taken,
)
from delivery.api import bodies
from delivery.pull import calls
from delivery.replay.filters import FILTER
from delivery.serializers import deliveries, filters, messages, ordering_keys, pull, replays
from delivery.serializers.base import public_id
from delivery.serializers.requests import ManySerializer, RepairSerializer

DELIVERY = shown(deliveries.DeliverySerializer)
DELIVERY_WITH_ATTEMPTS = shown(deliveries.DeliveryWithAttemptsSerializer)
PROBE = shown(deliveries.ProbeSerializer)
NOTES = component(
    "Notes",
    record(
        items={"type": "array", "items": shown(deliveries.NoteSerializer)},
        next=MAYBE_TEXT,
    ),
)
MESSAGE = shown(messages.MessageSerializer)
MESSAGE_WITH_DELIVERIES = shown(messages.MessageWithDeliveriesSerializer)
CANCELLED_MESSAGE = shown(messages.CancelledMessageSerializer)
MANY_RESULTS = shown(messages.ManyResultsSerializer)
TIMELINE = component("Timeline", record(items={"type": "array", "items": MESSAGE}, next=MAYBE_TEXT))
HISTOGRAM = shown(messages.TimelineHistogramSerializer)
ORDERING_KEY = shown(ordering_keys.OrderingKeySerializer)
ORDERING_KEYS = shown(ordering_keys.OrderingKeysSerializer)
REPLAY = shown(replays.ReplaySerializer)
REPLAY_PREVIEW = shown(replays.ReplayPreviewSerializer)
BACKFILL_PREVIEW = shown(replays.BackfillPreviewSerializer)
RECEIVED = shown(pull.ReceivedMessagesSerializer)
LEASE_RESULTS = shown(pull.LeaseResultsSerializer)

taken(FILTER)  # others refer to it
REPAIR, SKIP = taken(bodies.REPAIR), taken(bodies.SKIP)
RESCHEDULE = taken(bodies.RESCHEDULE)
MOVE_MANY = component("MoveMany", ManySerializer.schema_of(bodies.MOVE_ITEM))
CANCEL_MANY = component("CancelMany", ManySerializer.schema_of(bodies.CANCEL_ITEM))
REPLAY_REQUEST, BACKFILL_REQUEST = taken(bodies.REPLAY), taken(bodies.BACKFILL)
RECEIVE = taken(calls.RECEIVE)

_BODY = (400, 411, 413, 415, 422)
_MESSAGE, _DELIVERY, _REPLAY = (
    OpenApiParameter(f"{noun}_id", public_id(prefix), OpenApiParameter.PATH)
    for noun, prefix in (("message", "msg"), ("delivery", "dlv"), ("replay", "rpl"))
)
_CONSUMER = (CHANNEL, CLIENT_ID)
get_message = operation(
    "getMessage",
    "Get a message with its deliveries",
    tag="Messages",
    answers={200: MESSAGE_WITH_DELIVERIES},
    errors=(404,),
    parameters=(_MESSAGE, ETAG),
)
patch_message = operation(
    "patchMessage",
    "Change the priority or due time of a message",
    tag="Messages",
    body={JSON: RESCHEDULE},
    answers={200: MESSAGE_WITH_DELIVERIES},
    errors=(404, 409, 412, *_BODY),
    parameters=(
        _MESSAGE,
        ETAG,
        IF_MATCH,
    ),
)
delete_message = operation(
    "cancelMessage",
    "Cancel a message",
    tag="Messages",
    answers={200: CANCELLED_MESSAGE},
    errors=(404, 409, 412, 422),
    parameters=(
        _MESSAGE,
        ETAG,
        IF_MATCH,
        *queries(RepairSerializer),
    ),
)
move_messages = operation(
    "moveMessages",
    "Move many messages",
    tag="Messages",
    body={JSON: MOVE_MANY},
    answers={207: MANY_RESULTS},
    errors=_BODY,
)
cancel_messages = operation(
    "cancelMessages",
    "Cancel many messages",
    tag="Messages",
    body={JSON: CANCEL_MANY},
    answers={207: MANY_RESULTS},
    errors=_BODY,
)
list_timeline = operation(
    "listTimeline",
    "List messages that are due later",
    tag="Timeline",
    answers={200: TIMELINE},
    errors=(404, 422),
    parameters=(CHANNEL, *queries(filters.TimelineQuerySerializer), *LIST),
)
get_histogram = operation(
    "getTimelineHistogram",
    "Count messages that are due later",
    tag="Timeline",
    answers={200: HISTOGRAM},
    errors=(404, 422),
    parameters=(CHANNEL, *queries(filters.HistogramQuerySerializer)),
)
get_body = operation(
    "getMessageBody",
    "Get the body of a message",
    tag="Messages",
    answers={200: {"type": "string", "format": "binary"}},
    # The producer chooses the type; code generators use the first one.
    content=(BYTES, "*/*"),
    errors=(404,),
    parameters=(_MESSAGE,),
)
list_messages = operation(
    "listMessages",
    "List the messages of a channel",
    tag="Messages",
    answers={200: page_of(MESSAGE)},
    errors=(404, 422),
    parameters=(CHANNEL, *queries(filters.MessageQuerySerializer), *LIST),
)
get_delivery = operation(
    "getDelivery",
    "Get a delivery with its attempts",
    tag="Deliveries",
    answers={200: DELIVERY_WITH_ATTEMPTS, 304: None},
    errors=(404,),
    parameters=(
        _DELIVERY,
        *READING,
    ),
)
replay_delivery = operation(
    "replayDelivery",
    "Replay a delivery",
    tag="Deliveries",
    body={JSON: REPAIR},
    answers={202: DELIVERY},
    errors=(404, 409, *_BODY),
    parameters=(_DELIVERY,),
)
cancel_delivery = operation(
    "cancelDelivery",
    "Cancel a delivery",
    tag="Deliveries",
    body={JSON: REPAIR},
    answers={200: DELIVERY},
    errors=(404, 409, *_BODY),
    parameters=(_DELIVERY,),
)
list_deliveries = operation(
    "listDeliveries",
    "List the deliveries of a consumer",
    tag="Deliveries",
    answers={200: page_of(DELIVERY)},
    errors=(404, 422),
    parameters=(*_CONSUMER, *queries(filters.DeliveryQuerySerializer), *LIST),
)
list_dead_letters = operation(
    "listDeadLetters",
    "List the dead letters of a consumer",
    tag="Deliveries",
    answers={200: page_of(DELIVERY)},
    errors=(404, 422),
    parameters=(*_CONSUMER, *queries(filters.DeadLetterQuerySerializer), *LIST),
)
compare_notes = operation(
    "listConsumerMessages",
    "List the messages sent to a consumer",
    tag="Deliveries",
    answers={200: NOTES},
    errors=(404, 422),
    parameters=(*_CONSUMER, *queries(filters.NoteQuerySerializer), *LIST),
)
list_replays = operation(
    "listReplays",
    "List replays and backfills",
    tag="Replays",
    answers={200: page_of(REPLAY)},
    errors=(422,),
    parameters=(*queries(filters.ReplayQuerySerializer), *LIST),
)
create_replay = operation(
    "createReplay",
    "Replay all deliveries that match",
    tag="Replays",
    body={JSON: REPLAY_REQUEST},
    answers={200: REPLAY_PREVIEW, 202: REPLAY},
    errors=(404, 409, *_BODY),
)
create_backfill = operation(
    "createBackfill",
    "Send past messages to a consumer",
    tag="Replays",
    body={JSON: BACKFILL_REQUEST},
    answers={200: BACKFILL_PREVIEW, 202: REPLAY},
    errors=(404, 409, *_BODY),
    parameters=(*_CONSUMER,),
)
get_replay = operation(
    "getReplay",
    "Get a replay",
    tag="Replays",
    answers={200: REPLAY, 304: None},
    errors=(404,),
    parameters=(
        _REPLAY,
        *READING,
    ),
)
cancel_replay = operation(
    "cancelReplay",
    "Cancel a replay",
    tag="Replays",
    body={JSON: REPAIR},
    answers={200: REPLAY},
    errors=(404, 409, *_BODY),
    parameters=(_REPLAY,),
)
receive = operation(
    "receiveMessages",
    "Receive messages",
    tag="Pull",
    body={JSON: RECEIVE},
    optional=True,
    answers={200: RECEIVED},
    errors=(404, 409, *_BODY),
    parameters=(*_CONSUMER,),
)
ack_leases, nack_leases, extend_leases, release_leases = (
    operation(
        f"{name}Leases",
        summary,
        tag="Pull",
        body={JSON: taken(known)},
        answers={200: LEASE_RESULTS},
        errors=_BODY,
    )
    for name, summary, known in (
        ("ack", "Acknowledge received messages", bodies.ACK),
        ("nack", "Reject received messages", bodies.NACK),
        ("extend", "Extend leases", bodies.EXTEND),
        ("release", "Give received messages back", bodies.RELEASE),
    )
)
test_consumer = operation(
    "testConsumer",
    "Send a sample to a consumer",
    tag="Consumers",
    answers={200: PROBE},
    errors=(404, 409, 429, *_BODY),
    parameters=(*_CONSUMER,),
)
_ORDERING_KEY = OpenApiParameter("ordering_key_id", public_id("oky"), OpenApiParameter.PATH)
_ONE_KEY = (*_CONSUMER, _ORDERING_KEY)
list_ordering_keys = operation(
    "listOrderingKeys",
    "List the ordering keys of a consumer",
    tag="Ordering keys",
    answers={200: ORDERING_KEYS},
    errors=(404, 422),
    parameters=(
        *_CONSUMER,
        *queries(filters.OrderingKeyQuerySerializer),
        query("limit", "Maximum items.", {"type": "integer", "minimum": 1, "maximum": 200}),
    ),
)
get_ordering_key = operation(
    "getOrderingKey",
    "Get an ordering key of a consumer",
    tag="Ordering keys",
    answers={200: ORDERING_KEY},
    errors=(404,),
    parameters=_ONE_KEY,
)
pause_ordering_key = operation(
    "pauseOrderingKey",
    "Pause an ordering key",
    tag="Ordering keys",
    body={JSON: REPAIR},
    answers={200: ORDERING_KEY},
    errors=(404, *_BODY),
    parameters=_ONE_KEY,
)
resume_ordering_key = operation(
    "resumeOrderingKey",
    "Resume a paused ordering key",
    tag="Ordering keys",
    body={JSON: REPAIR},
    answers={200: ORDERING_KEY},
    errors=(404, *_BODY),
    parameters=_ONE_KEY,
)
skip_ordering_key = operation(
    "skipOrderingKey",
    "Skip the head of an ordering key",
    tag="Ordering keys",
    body={JSON: SKIP},
    answers={200: ORDERING_KEY},
    errors=(404, 409, *_BODY),
    parameters=_ONE_KEY,
)
