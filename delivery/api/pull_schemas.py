"""Define the OpenAPI schemas of pull consumers' requests and responses."""

from channels_app.api.openapi import (
    INSTANT,
    MAYBE_INSTANT,
    MAYBE_TEXT,
    TEXT,
    WHOLE,
    component,
    record,
)
from channels_app.core import fields
from delivery.api import bodies
from delivery.api.schemas import (
    ADDRESS,
    MESSAGE_ID,
    PRIORITY,
    YES_OR_NO,
    described,
    list_of,
    one_of,
    public_id,
)

RECEIVE = component("Receive", fields.object_schema(bodies.RECEIVE, partial=True))
ACK, NACK, EXTEND, RELEASE = (
    component(name, fields.object_schema(known, partial=True) | {"required": ["leases"]})
    for name, known in (
        ("Acknowledgement", bodies.ACK),
        ("NegativeAcknowledgement", bodies.NACK),
        ("LeaseExtension", bodies.EXTEND),
        ("LeaseRelease", bodies.RELEASE),
    )
)
_HANDED = record(
    id=MESSAGE_ID,
    delivery_id=public_id("dlv"),
    lease=described(MAYBE_TEXT, "lse_..., for settling it; null with `auto_ack`."),
    lease_expires_at=described(MAYBE_INSTANT, "After this instant another worker may receive it."),
    attempt=described(WHOLE, "Counts from 1 since the last replay."),
    max_attempts=WHOLE,
    event_type=TEXT,
    priority=PRIORITY,
    ordering_key=TEXT,
    replay=described(YES_OR_NO, "True for a replay."),
    accepted_at=INSTANT,
    content_type=TEXT,
    headers=described(
        {"type": "object", "additionalProperties": TEXT}, "Headers forwarded from the producer."
    ),
)
_HANDED["properties"] |= {
    "body": described(TEXT, "The body, if it is UTF-8."),
    "body_base64": {"type": "string", "contentEncoding": "base64"},
    "body_url": described(ADDRESS, "URL of the body, if it is too large for this response."),
}
HANDED = component("ReceivedMessage", _HANDED)
RECEIVED = component(
    "ReceivedMessages",
    record(
        messages=list_of(HANDED),
        now=described(INSTANT, "The broker's time."),
    ),
)
_FAILED = component(
    "LeaseFailure", record(lease=TEXT, error=one_of(["expired", "unknown", "too_long"]))
)
SETTLED = component(
    "LeaseResults",
    record(
        done=described(
            list_of(TEXT), "Leases for which this, or an earlier identical call, succeeded."
        ),
        failed=list_of(
            _FAILED,
            description="`expired`: another worker has the message, or it is finished. "
            "`unknown`: not a lease of this caller. `too_long`: it cannot be extended further.",
        ),
    ),
)
