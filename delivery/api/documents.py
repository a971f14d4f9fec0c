"""Describe parameters and responses of operations for OpenAPI.

The docstrings of the views describe what the operations do.
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
    READING,
    TEXT,
    operation,
    page_of,
    query,
)
from channels_app.models import Message
from delivery.api import moves, pull_schemas, schemas
from delivery.api.pages import SHOWN_STATES
from delivery.models import Replay

_BODY = (400, 411, 413, 415, 422)
_MESSAGE, _DELIVERY, _REPLAY = (
    OpenApiParameter(f"{noun}_id", schemas.public_id(prefix), OpenApiParameter.PATH)
    for noun, prefix in (("message", "msg"), ("delivery", "dlv"), ("replay", "rpl"))
)
_CONSUMER = (CHANNEL, CLIENT_ID)
_INSTANT = {"type": "string", "description": "RFC 3339, or milliseconds since 1970."}
_WHAT = (
    query("event_type", "A name, `order.*` for all below it, or `*`."),
    query("from", "Accepted at this instant or later.", _INSTANT),
    query("to", "Accepted before this instant.", _INSTANT),
)
_OUTCOME = query("outcome", "Outcome of the last attempt.", schemas.one_of(schemas.OUTCOMES))
_MESSAGE_STATES = [*Message.State.values, "scheduled", *Message.Shown.values]

get_message = operation(
    "getMessage",
    "Get a message with its deliveries",
    tag="Messages",
    answers={200: schemas.MESSAGE_WITH_DELIVERIES},
    errors=(404,),
    parameters=(_MESSAGE, ETAG),
)
patch_message = operation(
    "patchMessage",
    "Change the priority or due time of a message",
    tag="Messages",
    body={JSON: moves.RESCHEDULE},
    answers={200: schemas.MESSAGE_WITH_DELIVERIES},
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
    answers={200: schemas.CANCELLED_MESSAGE},
    errors=(404, 409, 412, 422),
    parameters=(
        _MESSAGE,
        ETAG,
        IF_MATCH,
        query("reason", "For the audit log.", {**TEXT, "maxLength": 500}),
    ),
)
move_messages = operation(
    "moveMessages",
    "Move many messages",
    tag="Messages",
    body={JSON: moves.MOVE_MANY},
    answers={207: moves.RESULTS},
    errors=_BODY,
)
cancel_messages = operation(
    "cancelMessages",
    "Cancel many messages",
    tag="Messages",
    body={JSON: moves.CANCEL_MANY},
    answers={207: moves.RESULTS},
    errors=_BODY,
)
_AHEAD = (
    query("from", "Due at this instant or later; never before now.", _INSTANT),
    query("to", "Due before this instant.", _INSTANT),
)
list_timeline = operation(
    "listTimeline",
    "List messages that are due later",
    tag="Timeline",
    answers={200: moves.TIMELINE},
    errors=(404, 422),
    parameters=(CHANNEL, *_AHEAD, *LIST),
)
get_histogram = operation(
    "getTimelineHistogram",
    "Count messages that are due later",
    tag="Timeline",
    answers={200: moves.HISTOGRAM},
    errors=(404, 422),
    parameters=(
        CHANNEL,
        *_AHEAD,
        query(
            "width_s",
            "Seconds of a bucket; default 60. Without `to` there are 60 buckets.",
            {"type": "integer", "minimum": 1, "maximum": 86_400},
        ),
    ),
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
    answers={200: page_of(schemas.MESSAGE)},
    errors=(404, 422),
    parameters=(
        CHANNEL,
        query("state", "As stored or as shown.", schemas.stored_or_shown(_MESSAGE_STATES)),
        query(
            "idempotency_key",
            "Only the message published with this key of the caller, within the key's window.",
        ),
        *(*_WHAT, *LIST),
    ),
)
get_delivery = operation(
    "getDelivery",
    "Get a delivery with its attempts",
    tag="Deliveries",
    answers={200: schemas.DELIVERY_WITH_ATTEMPTS, 304: None},
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
    body={JSON: schemas.REPAIR},
    answers={202: schemas.DELIVERY},
    errors=(404, 409, *_BODY),
    parameters=(_DELIVERY,),
)
cancel_delivery = operation(
    "cancelDelivery",
    "Cancel a delivery",
    tag="Deliveries",
    body={JSON: schemas.REPAIR},
    answers={200: schemas.DELIVERY},
    errors=(404, 409, *_BODY),
    parameters=(_DELIVERY,),
)
list_deliveries = operation(
    "listDeliveries",
    "List the deliveries of a consumer",
    tag="Deliveries",
    answers={200: page_of(schemas.DELIVERY)},
    errors=(404, 422),
    parameters=(
        *_CONSUMER,
        query(
            "state",
            "As stored (`queued` includes retries), or exactly as shown.",
            schemas.stored_or_shown(SHOWN_STATES),
        ),
        *(_OUTCOME, *_WHAT, *LIST),
    ),
)
list_dead_letters = operation(
    "listDeadLetters",
    "List the dead letters of a consumer",
    tag="Deliveries",
    answers={200: page_of(schemas.DELIVERY)},
    errors=(404, 422),
    parameters=(*_CONSUMER, _OUTCOME, *_WHAT, *LIST),
)
compare_notes = operation(
    "listConsumerMessages",
    "List the messages sent to a consumer",
    tag="Deliveries",
    answers={200: schemas.NOTES},
    errors=(404, 422),
    parameters=(
        *_CONSUMER,
        query("after", "Id of the last known message; the list begins after it."),
        *LIST,
    ),
)
list_replays = operation(
    "listReplays",
    "List replays and backfills",
    tag="Replays",
    answers={200: page_of(schemas.REPLAY)},
    errors=(422,),
    parameters=(query("state", "", schemas.one_of(Replay.State.values)), *LIST),
)
create_replay = operation(
    "createReplay",
    "Replay all deliveries that match",
    tag="Replays",
    body={JSON: schemas.REPLAY_REQUEST},
    answers={200: schemas.REPLAY_PREVIEW, 202: schemas.REPLAY},
    errors=(404, 409, *_BODY),
)
create_backfill = operation(
    "createBackfill",
    "Send past messages to a consumer",
    tag="Replays",
    body={JSON: schemas.BACKFILL_REQUEST},
    answers={200: schemas.BACKFILL_PREVIEW, 202: schemas.REPLAY},
    errors=(404, 409, *_BODY),
    parameters=(*_CONSUMER,),
)
get_replay = operation(
    "getReplay",
    "Get a replay",
    tag="Replays",
    answers={200: schemas.REPLAY, 304: None},
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
    body={JSON: schemas.REPAIR},
    answers={200: schemas.REPLAY},
    errors=(404, 409, *_BODY),
    parameters=(_REPLAY,),
)
receive = operation(
    "receiveMessages",
    "Receive messages",
    tag="Pull",
    body={JSON: pull_schemas.RECEIVE},
    optional=True,
    answers={200: pull_schemas.RECEIVED},
    errors=(404, 409, *_BODY),
    parameters=(*_CONSUMER,),
)
ack_leases, nack_leases, extend_leases, release_leases = (
    operation(
        f"{name}Leases",
        summary,
        tag="Pull",
        body={JSON: schema},
        answers={200: pull_schemas.SETTLED},
        errors=_BODY,
    )
    for name, summary, schema in (
        ("ack", "Acknowledge received messages", pull_schemas.ACK),
        ("nack", "Reject received messages", pull_schemas.NACK),
        ("extend", "Extend leases", pull_schemas.EXTEND),
        ("release", "Give received messages back", pull_schemas.RELEASE),
    )
)
test_consumer = operation(
    "testConsumer",
    "Send a sample to a consumer",
    tag="Consumers",
    answers={200: schemas.PROBE},
    errors=(404, 409, 429, *_BODY),
    parameters=(*_CONSUMER,),
)
