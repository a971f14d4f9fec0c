"""Define the OpenAPI schemas of the requests in bodies.py and the responses in shapes.py."""

from collections.abc import Iterable
from typing import Any

from channels_app.api.openapi import (
    INSTANT,
    MAYBE_INSTANT,
    MAYBE_TEXT,
    MAYBE_WHOLE,
    TEXT,
    WHOLE,
    component,
    record,
)
from channels_app.models import Message
from delivery.api import bodies
from delivery.core.lifecycle import FINISHED, Reason
from delivery.core.outcome import Outcome
from delivery.core.timing import PARTS
from delivery.models import Replay
from delivery.replay.filters import (
    HIGHEST_STATUS,
    LOWEST_STATUS,
    MAX_EVENT_TYPES,
    MAX_IDS,
    MAX_STATUS_CODES,
)

Schema = dict[str, Any]

OUTCOMES = [outcome.value for outcome in Outcome]
SHOWN = [
    *("Queued", "In-flight", "Retry-Delivery", "Retry-In-flight"),
    *("Awaiting-Ack", "Delivered", "Dead", "Cancelled"),
]
YES_OR_NO: Schema = {"type": "boolean"}
PRIORITY: Schema = {"type": "integer", "minimum": 0, "maximum": 9}
ADDRESS: Schema = {"type": "string", "format": "uri"}


def described(schema: Schema, description: str) -> Schema:
    """A schema with a description."""
    return schema | {"description": description}


def one_of(values: Any) -> Schema:
    """Return the schema of a text with fixed choices."""
    return {"type": "string", "enum": list(values)}


def stored_or_shown(states: Iterable[str]) -> Schema:
    """Return the schema of a state as stored (`queued`) or as shown (`Queued`).

    Code generators then tell the two apart.
    """
    names = [
        ("" if state == state.lower() else "SHOWN_") + state.replace("-", "_").upper()
        for state in states
    ]
    return one_of(states) | {"x-enum-varnames": names}


def list_of(schema: Schema, **more: Any) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema, **more}


def public_id(prefix: str, description: str = "") -> Schema:
    """Return the schema of a public id."""
    found = {"type": "string", "pattern": f"^{prefix}_[0-7][0-9a-hjkmnp-tv-z]{{12}}$"}
    return described(found, description) if description else found


MESSAGE_ID = public_id("msg", "Ascending in the order of acceptance.")

STATE = component(
    "DeliveryState",
    described(one_of(SHOWN), "Retry-...: an attempt has failed since the last replay."),
)
_DELIVERY = {
    "id": public_id("dlv", "Ascending in the order of creation."),
    "message_id": MESSAGE_ID,
    "channel": TEXT,
    "consumer": described(TEXT, "The consumer's client id."),
    "state": STATE,
    "reason": described(one_of(reason.value for reason in Reason), "Why it is in this state."),
    "outcome": described(
        one_of(["", *OUTCOMES]), "How the last attempt ended; empty before the first."
    ),
    "status_code": described(MAYBE_WHOLE, "HTTP status of the last response."),
    "attempt_count": described(WHOLE, "All attempts ever started."),
    "failure_count": described(WHOLE, "Failures since the last replay, of max_attempts."),
    "next_attempt_at": described(MAYBE_INSTANT, "When it is due; null unless it is queued."),
    "held_until": described(
        MAYBE_INSTANT,
        "In flight: when its lease ends. Awaiting-Ack: when the acknowledgement times out.",
    ),
    "event_type": TEXT,
    "priority": PRIORITY,
    "ordering_key": TEXT,
    "replay_id": described(MAYBE_TEXT, "The replay that queued it last."),
    "accepted_at": described(INSTANT, "When the broker accepted the message."),
    "expires_at": described(MAYBE_INSTANT, "It is not sent after this instant."),
    "finished_at": MAYBE_INSTANT,
    "url": described(ADDRESS, "The delivery with its attempts."),
}
DELIVERY = component("Delivery", record(**_DELIVERY))

RESPONSE = component(
    "ResponseExcerpt",
    {
        "type": "object",
        "description": "The beginning of a response; `body` if it is UTF-8, else `body_base64`.",
        "properties": {
            "headers": described(TEXT, "Status line and headers, up to 2 KiB."),
            "body": TEXT,
            "body_base64": {"type": "string", "contentEncoding": "base64"},
        },
        "required": ["headers"],
    },
)
_EXCHANGE = {
    "outcome": one_of(OUTCOMES),
    "status_code": MAYBE_WHOLE,
    "error": described(TEXT, "One sentence; empty on success."),
    "connect_ms": described(MAYBE_WHOLE, "Null on a reused connection."),
    "first_byte_ms": MAYBE_WHOLE,
    "total_ms": WHOLE,
    "remote_address": TEXT,
    "response": RESPONSE,
}
_ATTEMPT = record(
    id=public_id("att"),
    number=described(WHOLE, "Counts from 1 across all replays."),
    started_at=INSTANT,
    **_EXCHANGE
    | {
        # null on a sensitive channel without the scope `sensitive`.
        "response": {"oneOf": [RESPONSE, {"type": "null"}]}
    },
)
_ATTEMPT["properties"]["worker"] = described(TEXT, "The process that sent it; only for admin keys.")
ATTEMPT = component("Attempt", _ATTEMPT)
ROUNDTRIP = component(
    "Roundtrip",
    record(
        accepted_at=INSTANT,
        leased_at=described(INSTANT, "When a worker claimed it."),
        sent_at=described(INSTANT, "When the connection was ready."),
        responded_at=described(INSTANT, "When the response had arrived."),
        acknowledged_at=described(INSTANT, "When the broker had the acknowledgement."),
        total_ms=described({"type": "number"}, "The sum of the parts."),
        **{
            f"{name}_ms": described({"type": "number"}, f"{words}, in milliseconds.")
            for name, words in PARTS
        },
    ),
)
DELIVERY_WITH_ATTEMPTS = component(
    "DeliveryWithAttempts",
    record(
        **_DELIVERY,
        # How long each phase took; null until it is delivered.
        roundtrip={"oneOf": [ROUNDTRIP, {"type": "null"}]},
        attempts=list_of(ATTEMPT, description="The newest 200, oldest first."),
    ),
)

_MESSAGE = {
    "id": MESSAGE_ID,
    "channel": TEXT,
    "state": component("MessageState", one_of(Message.Shown.values)),
    "scheduled": described(YES_OR_NO, "True until it is due."),
    "event_type": TEXT,
    "priority": PRIORITY,
    "ordering_key": TEXT,
    "content_type": TEXT,
    "body_bytes": WHOLE,
    "accepted_at": INSTANT,
    "due_at": described(INSTANT, "It is not sent before this instant."),
    "expires_at": described(MAYBE_INSTANT, "It is not sent after this instant."),
    "consumer_count": described(WHOLE, "Consumers that it was fanned out to, or will be."),
    "version": described(WHOLE, "The version in its ETag."),
    "url": ADDRESS,
    "body_url": described(ADDRESS, "Returns the exact bytes of the body."),
}
MESSAGE = component("Message", record(**_MESSAGE))
_WITH_DELIVERIES = {
    **_MESSAGE,
    "headers": {
        "type": ["object", "null"],
        "additionalProperties": TEXT,
        "description": "Forwarded to consumers. Null on a sensitive channel without the scope "
        "sensitive.",
    },
    "idempotency_key": described(TEXT, "Empty unless the caller's side published it."),
    "producer": described(MAYBE_TEXT, "Null unless the caller's side published it."),
    "deliveries": list_of(
        DELIVERY,
        description="Up to 1,000 deliveries: all if the caller's side published the message, "
        "else those of its own consumers.",
    ),
}
MESSAGE_WITH_DELIVERIES = component("MessageWithDeliveries", record(**_WITH_DELIVERIES))
CANCELLED_MESSAGE = component(
    "CancelledMessage",
    record(
        **_WITH_DELIVERIES, cancelled_count=described(WHOLE, "Deliveries that this call cancelled.")
    ),
)

REASON = {"type": ["string", "null"], "maxLength": 500, "description": "For the audit log."}
RATE = {
    "type": ["number", "null"],
    "minimum": bodies.LOWEST_RATE,
    "maximum": bodies.HIGHEST_RATE,
    "description": "Deliveries queued per second; null for all at once.",
}
WRITTEN_INSTANT = {
    "anyOf": [INSTANT, described(WHOLE, "Milliseconds since 1970.")],
}
REPAIR = component(
    "Repair",
    {"type": "object", "properties": {"reason": REASON}, "additionalProperties": False},
)

_EVENT_TYPES = list_of(
    TEXT, minItems=1, maxItems=MAX_EVENT_TYPES, description="Names, `order.*`, or `*`."
)
_RANGE = {
    "from": described(WRITTEN_INSTANT, "Accepted at this instant or later."),
    "to": described(WRITTEN_INSTANT, "Accepted before this instant."),
}
FILTER = component(
    "ReplayFilter",
    {
        "type": "object",
        "description": "Finished deliveries that match all conditions. A channel or ids are "
        "required. Null means absent; an empty list is refused.",
        "properties": {
            "channel": TEXT,
            "consumer": described(TEXT, "A client id on that channel."),
            "states": list_of(
                one_of(sorted(state.value for state in FINISHED)), minItems=1, default=["dead"]
            ),
            "outcomes": list_of(one_of(OUTCOMES), minItems=1),
            "status_codes": list_of(
                {"type": "integer", "minimum": LOWEST_STATUS, "maximum": HIGHEST_STATUS},
                minItems=1,
                maxItems=MAX_STATUS_CODES,
            ),
            "event_types": _EVENT_TYPES,
            **_RANGE,
            "ids": list_of(public_id("dlv"), minItems=1, maxItems=MAX_IDS),
        },
        "additionalProperties": False,
    },
)
_HOW = {"dry_run": YES_OR_NO | {"default": False}, "rate_per_second": RATE, "reason": REASON}
REPLAY_REQUEST = component(
    "ReplayRequest",
    {
        "type": "object",
        "properties": {"filter": FILTER, **_HOW},
        "required": ["filter"],
        "additionalProperties": False,
    },
)
BACKFILL_REQUEST = component(
    "BackfillRequest",
    {
        "type": "object",
        "properties": {"event_types": _EVENT_TYPES, **_RANGE, **_HOW},
        "additionalProperties": False,
    },
)
_STATE = one_of(state.value for state in Replay.State)
REPLAY = component(
    "Replay",
    record(
        id=public_id("rpl"),
        kind=one_of(["replay", "backfill"]),
        state=_STATE,
        filter=FILTER,
        matched_count=described(WHOLE, "Deliveries or messages that matched when it was created."),
        replayed_count=described(WHOLE, "Deliveries queued so far."),
        rate_per_second={"type": ["number", "null"]},
        reason=TEXT,
        requested_by=TEXT,
        created_at=INSTANT,
        finished_at=MAYBE_INSTANT,
        url=ADDRESS,
    ),
)


def preview(name: str, item: Schema) -> Schema:
    """Return the schema of a dry run's response."""
    looked = "False if there was too much to count: then `matched_count` is a minimum or estimate."
    return component(
        name,
        record(
            dry_run=YES_OR_NO,
            filter=FILTER,
            matched_count=WHOLE,
            exact=described(YES_OR_NO, looked),
            sample=list_of(item, maxItems=10),
        ),
    )


REPLAY_PREVIEW = preview("ReplayPreview", DELIVERY)
BACKFILL_PREVIEW = preview("BackfillPreview", MESSAGE)
PROBE = component(
    "Probe",
    record(
        webhook_id=described(TEXT, "Id of the sample; begins with `msg_test_`."),
        event_type=TEXT,
        body=described(TEXT, "The body that was sent."),
        delivered=described(YES_OR_NO, "True if the consumer answered 2xx."),
        **_EXCHANGE,
    ),
)
NOTE = component(
    "Note",
    record(
        message_id=MESSAGE_ID,
        delivery_id=public_id("dlv"),
        state=STATE,
        event_type=TEXT,
        accepted_at=INSTANT,
        finished_at=MAYBE_INSTANT,
    ),
)
NOTES = component("Notes", record(items=list_of(NOTE), next=MAYBE_TEXT))
