"""Define the OpenAPI schemas of moving messages and of the timeline."""

from channels_app.api.openapi import INSTANT, MAYBE_TEXT, TEXT, WHOLE, component, record
from channels_app.core import times
from delivery.api.schemas import (
    MESSAGE,
    PRIORITY,
    REASON,
    WRITTEN_INSTANT,
    YES_OR_NO,
    Schema,
    described,
    list_of,
)

_MOVE: Schema = {
    "priority": PRIORITY,
    "due_at": described(WRITTEN_INSTANT, "New due time; a past one means now. Excludes delay_ms."),
    "delay_ms": described(
        {"type": "integer", "minimum": 0, "maximum": times.MAX_DELAY_MS},
        "New due time, in milliseconds from now by the broker's clock.",
    ),
}
RESCHEDULE = component(
    "Reschedule",
    {
        "type": "object",
        "properties": _MOVE | {"reason": REASON},
        "additionalProperties": False,
        "anyOf": [{"required": [name]} for name in _MOVE],
        "not": {"required": ["due_at", "delay_ms"]},
    },
)
_ONE_OF_MANY: Schema = {
    "id": TEXT,
    "version": described(
        {"type": ["integer", "null"], "minimum": 0}, "Like If-Match: 412 if changed."
    ),
}


def many(name: str, **properties: Schema) -> Schema:
    """Return the schema of a body with many messages."""
    item = {
        "title": f"{name}Item",
        "type": "object",
        "properties": _ONE_OF_MANY | properties,
        "required": ["id"],
        "additionalProperties": False,
    }
    return component(
        name,
        {
            "type": "object",
            "properties": {"messages": list_of(item, maxItems=200), "reason": REASON},
            "required": ["messages"],
            "additionalProperties": False,
        },
    )


MOVE_MANY = many("MoveMany", **_MOVE)
CANCEL_MANY = many("CancelMany")
RESULTS = component(
    "ManyResults",
    record(
        items=list_of(
            {
                "title": "ManyResult",
                "type": "object",
                "properties": {
                    "id": MAYBE_TEXT,
                    "status": described(WHOLE, "200, or the status of the error."),
                    "version": described(WHOLE, "The new version."),
                    "cancelled_count": WHOLE,
                    "code": TEXT,
                    "detail": TEXT,
                    "field": TEXT,
                },
                "required": ["id", "status"],
            },
            description="In the order of the request.",
        ),
        done=WHOLE,
        refused=WHOLE,
    ),
)
_BUCKET = component("TimelineBucket", record(**{"from": INSTANT, "count": WHOLE}))
TIMELINE = component("Timeline", record(items=list_of(MESSAGE), next=MAYBE_TEXT))
HISTOGRAM = component(
    "TimelineHistogram",
    record(
        width_s=WHOLE,
        buckets=list_of(_BUCKET),
        count=WHOLE,
        complete=described(YES_OR_NO, "False if there are more than were counted."),
    ),
)
