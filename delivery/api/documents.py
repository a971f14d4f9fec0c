"""What the OpenAPI document says of each operation; the views' docstrings say what it does."""

from drf_spectacular.utils import OpenApiParameter

from channels_app.api.openapi import (
    CHANNEL,
    CLIENT_ID,
    ETAG,
    IF_MATCH,
    INSTANT,
    JSON,
    LIST,
    READING,
    TEXT,
    operation,
    page_of,
    query,
    record,
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
_OUTCOME = query("outcome", "How the last attempt ended.", schemas.one_of(schemas.OUTCOMES))
_MESSAGE_STATES = [*Message.State.values, *Message.Shown.values, "scheduled"]

get_message = operation(
    "messages_retrieve",
    tag="Messages",
    answers={200: schemas.MESSAGE_WITH_DELIVERIES},
    errors=(404,),
    parameters=(_MESSAGE, ETAG),
)
patch_message = operation(
    "messages_reschedule",
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
    "messages_cancel",
    tag="Messages",
    answers={200: schemas.CANCELLED_MESSAGE},
    errors=(404, 409, 412, 422),
    parameters=(
        _MESSAGE,
        ETAG,
        IF_MATCH,
        query("reason", "For the audit trail.", {**TEXT, "maxLength": 500}),
    ),
)
move_messages = operation(
    "messages_move",
    tag="Messages",
    body={JSON: moves.MOVE_MANY},
    answers={207: moves.RESULTS},
    errors=_BODY,
)
cancel_messages = operation(
    "messages_cancel_many",
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
    "timeline_list",
    tag="Timeline",
    answers={200: record(items=schemas.list_of(schemas.MESSAGE), next=schemas.MAYBE_TEXT)},
    errors=(404, 422),
    parameters=(CHANNEL, *_AHEAD, *LIST),
)
get_histogram = operation(
    "timeline_histogram",
    tag="Timeline",
    answers={200: moves.HISTOGRAM},
    errors=(404, 422),
    parameters=(
        CHANNEL,
        *_AHEAD,
        query(
            "width_s",
            "Seconds of a stretch; 60 without it. Without `to` there are 60 of them.",
            {"type": "integer", "minimum": 1, "maximum": 86_400},
        ),
    ),
)
get_body = operation(
    "messages_body",
    tag="Messages",
    answers={200: {"type": "string", "format": "binary"}},
    content="*/*",
    errors=(404,),
    parameters=(_MESSAGE,),
)
list_messages = operation(
    "messages_list",
    tag="Messages",
    answers={200: page_of(schemas.MESSAGE)},
    errors=(404, 422),
    parameters=(
        CHANNEL,
        query("state", "As stored or as shown.", schemas.one_of(dict.fromkeys(_MESSAGE_STATES))),
        query(
            "idempotency_key",
            "The message that this key of the caller's own stands for, within the key's window.",
        ),
        *(*_WHAT, *LIST),
    ),
)
get_delivery = operation(
    "deliveries_retrieve",
    tag="Deliveries",
    answers={200: schemas.DELIVERY_WITH_ATTEMPTS, 304: None},
    errors=(404,),
    parameters=(
        _DELIVERY,
        *READING,
    ),
)
replay_delivery = operation(
    "deliveries_replay",
    tag="Deliveries",
    body={JSON: schemas.REPAIR},
    answers={202: schemas.DELIVERY},
    errors=(404, 409, *_BODY),
    parameters=(_DELIVERY,),
)
cancel_delivery = operation(
    "deliveries_cancel",
    tag="Deliveries",
    body={JSON: schemas.REPAIR},
    answers={200: schemas.DELIVERY},
    errors=(404, 409, *_BODY),
    parameters=(_DELIVERY,),
)
list_deliveries = operation(
    "consumers_deliveries_list",
    tag="Deliveries",
    answers={200: page_of(schemas.DELIVERY)},
    errors=(404, 422),
    parameters=(
        *_CONSUMER,
        query(
            "state",
            "As stored (`queued` includes retries), or exactly as shown.",
            schemas.one_of(SHOWN_STATES),
        ),
        *(_OUTCOME, *_WHAT, *LIST),
    ),
)
list_dead_letters = operation(
    "consumers_dead_letters_list",
    tag="Deliveries",
    answers={200: page_of(schemas.DELIVERY)},
    errors=(404, 422),
    parameters=(*_CONSUMER, _OUTCOME, *_WHAT, *LIST),
)
compare_notes = operation(
    "consumers_messages_list",
    tag="Deliveries",
    answers={200: record(items=schemas.list_of(schemas.NOTE), next=schemas.MAYBE_TEXT)},
    errors=(404, 422),
    parameters=(
        *_CONSUMER,
        query("after", "Id of the last message that is known: begin behind it."),
        *LIST,
    ),
)
list_replays = operation(
    "replays_list",
    tag="Replays",
    answers={200: page_of(schemas.REPLAY)},
    errors=(422,),
    parameters=(query("state", "", schemas.one_of(Replay.State.values)), *LIST),
)
create_replay = operation(
    "replays_create",
    tag="Replays",
    body={JSON: schemas.REPLAY_REQUEST},
    answers={200: schemas.REPLAY_PREVIEW, 202: schemas.REPLAY},
    errors=(404, 409, *_BODY),
)
create_backfill = operation(
    "consumers_backfill",
    tag="Replays",
    body={JSON: schemas.BACKFILL_REQUEST},
    answers={200: schemas.BACKFILL_PREVIEW, 202: schemas.REPLAY},
    errors=(404, 409, *_BODY),
    parameters=(*_CONSUMER,),
)
get_replay = operation(
    "replays_retrieve",
    tag="Replays",
    answers={200: schemas.REPLAY, 304: None},
    errors=(404,),
    parameters=(
        _REPLAY,
        *READING,
    ),
)
cancel_replay = operation(
    "replays_cancel",
    tag="Replays",
    body={JSON: schemas.REPAIR},
    answers={200: schemas.REPLAY},
    errors=(404, 409, *_BODY),
    parameters=(_REPLAY,),
)
receive = operation(
    "consumers_receive",
    tag="Pull",
    body={JSON: pull_schemas.RECEIVE},
    optional=True,
    answers={200: record(messages=schemas.list_of(pull_schemas.HANDED), now=INSTANT)},
    errors=(404, 409, *_BODY),
    parameters=(*_CONSUMER,),
)
ack_leases, nack_leases, extend_leases, release_leases = (
    operation(
        f"leases_{name}",
        tag="Pull",
        body={JSON: schema},
        answers={200: pull_schemas.SETTLED},
        errors=_BODY,
    )
    for name, schema in (
        ("ack", pull_schemas.ACK),
        ("nack", pull_schemas.NACK),
        ("extend", pull_schemas.EXTEND),
        ("release", pull_schemas.RELEASE),
    )
)
test_consumer = operation(
    "consumers_test",
    tag="Consumers",
    answers={200: schemas.PROBE},
    errors=(404, 409, 429, *_BODY),
    parameters=(*_CONSUMER,),
)
