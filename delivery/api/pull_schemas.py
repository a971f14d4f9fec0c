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
from channels_app.rules import fields
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
    lease=described(MAYBE_TEXT, "lse_...: settle it by this; null with `auto_ack`."),
    lease_expires_at=described(MAYBE_INSTANT, "From then on somebody else may receive it."),
    attempt=described(WHOLE, "From 1, within the current budget."),
    max_attempts=WHOLE,
    event_type=TEXT,
    priority=PRIORITY,
    ordering_key=TEXT,
    replay=described(YES_OR_NO, "Somebody asked for it again."),
    accepted_at=INSTANT,
    content_type=TEXT,
    headers=described(
        {"type": "object", "additionalProperties": TEXT}, "What the producer had forwarded."
    ),
)
_HANDED["properties"] |= {
    "body": described(TEXT, "Where it is UTF-8."),
    "body_base64": {"type": "string", "contentEncoding": "base64"},
    "body_url": described(ADDRESS, "Where it is too large to stand here with the others."),
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
        done=described(list_of(TEXT), "Leases for which it was done, now or by an earlier call."),
        failed=list_of(
            _FAILED,
            description="`expired`: the message is somebody else's by now, or finished. "
            "`unknown`: no lease of yours. `too_long`: it cannot be extended any more.",
        ),
    ),
)
