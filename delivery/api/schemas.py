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
from delivery.models import Replay
from delivery.rules.lifecycle import FINISHED, Reason
from delivery.rules.outcome import Outcome
from delivery.rules.roundtrip import PARTS
from delivery.steps.replay.filters import (
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


MESSAGE_ID = public_id("msg", "Rises with the order of acceptance.")

STATE = component(
    "DeliveryState",
    described(one_of(SHOWN), "Retry-... once an attempt has failed since the last replay."),
)
_DELIVERY = {
    "id": public_id("dlv", "Rises with the order in which deliveries are made."),
    "message_id": MESSAGE_ID,
    "channel": TEXT,
    "consumer": described(TEXT, "The consumer's client id."),
    "state": STATE,
    "reason": described(one_of(reason.value for reason in Reason), "Why it is in this state."),
    "outcome": described(one_of(["", *OUTCOMES]), "How the last attempt ended; empty before it."),
    "status_code": described(MAYBE_WHOLE, "HTTP status of the last response."),
    "attempt_count": described(WHOLE, "Attempts ever begun."),
    "failure_count": described(WHOLE, "Failures that count against max_attempts."),
    "next_attempt_at": described(
        MAYBE_INSTANT, "When it may be sent; null while it is not queued."
    ),
    "held_until": described(
        MAYBE_INSTANT,
        "In flight: when its holder's lease ends. Awaiting-Ack: when nobody waits any more.",
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
        "description": "The beginning of a consumer's response: `body` where it is UTF-8.",
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
    "connect_ms": described(MAYBE_WHOLE, "Null on a connection that was open already."),
    "first_byte_ms": MAYBE_WHOLE,
    "total_ms": WHOLE,
    "remote_address": TEXT,
    "response": RESPONSE,
}
_ATTEMPT = record(
    id=public_id("att"),
    number=described(WHOLE, "From 1, over all replays."),
    started_at=INSTANT,
    **_EXCHANGE
    | {
        # null on a sensitive channel without the scope `sensitive`.
        "response": {"oneOf": [RESPONSE, {"type": "null"}]}
    },
)
_ATTEMPT["properties"]["worker"] = described(TEXT, "The process that made it; for admin keys.")
ATTEMPT = component("Attempt", _ATTEMPT)
ROUNDTRIP = component(
    "Roundtrip",
    record(
        accepted_at=INSTANT,
        leased_at=described(INSTANT, "When a worker took it."),
        sent_at=described(INSTANT, "When the connection was there."),
        responded_at=described(INSTANT, "When the consumer had answered."),
        acknowledged_at=described(
            INSTANT, "When the broker had the acknowledgement: the end of it."
        ),
        total_ms=described({"type": "number"}, "The sum of the parts."),
        **{f"{name}_ms": described({"type": "number"}, f"{words}.") for name, words in PARTS},
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
    "scheduled": described(YES_OR_NO, "Its time is still to come."),
    "event_type": TEXT,
    "priority": PRIORITY,
    "ordering_key": TEXT,
    "content_type": TEXT,
    "body_bytes": WHOLE,
    "accepted_at": INSTANT,
    "due_at": described(INSTANT, "It is not sent before this instant."),
    "expires_at": described(MAYBE_INSTANT, "It is not sent after this instant."),
    "consumer_count": described(WHOLE, "Consumers that it is, or was, to be sent to."),
    "version": described(WHOLE, "Of its ETag."),
    "url": ADDRESS,
    "body_url": described(ADDRESS, "The exact bytes."),
}
MESSAGE = component("Message", record(**_MESSAGE))
_WITH_DELIVERIES = {
    **_MESSAGE,
    "headers": {
        "type": ["object", "null"],
        "additionalProperties": TEXT,
        "description": "Forwarded to consumers. null on a sensitive channel without the scope "
        "sensitive.",
    },
    "idempotency_key": described(TEXT, "Empty for all but the message's own side."),
    "producer": described(MAYBE_TEXT, "null for all but the message's own side."),
    "deliveries": list_of(
        DELIVERY,
        description="Those that exist for the caller, up to 1,000: its own consumers', "
        "and all of them for the message's own side.",
    ),
}
MESSAGE_WITH_DELIVERIES = component("MessageWithDeliveries", record(**_WITH_DELIVERIES))
CANCELLED_MESSAGE = component(
    "CancelledMessage",
    record(
        **_WITH_DELIVERIES, cancelled_count=described(WHOLE, "Deliveries that this call took back.")
    ),
)

REASON = {"type": ["string", "null"], "maxLength": 500, "description": "For the audit trail."}
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
        "description": "Finished deliveries for which all of it is true. It needs a channel, or "
        "ids. Null is the same as absent; an empty list is refused.",
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
        matched_count=described(WHOLE, "What matched when it was asked for."),
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
    looked = "False where there was too much to look at all of it: then at least, or about, that."
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
        webhook_id=described(TEXT, "The sample's id; begins with `msg_test_`."),
        event_type=TEXT,
        body=described(TEXT, "What was sent."),
        delivered=described(YES_OR_NO, "The consumer answered 2xx."),
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
