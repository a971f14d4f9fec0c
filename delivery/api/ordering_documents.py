"""What the OpenAPI document says of ordering keys."""

from drf_spectacular.utils import OpenApiParameter

from channels_app.api.openapi import (
    CHANNEL,
    CLIENT_ID,
    INSTANT,
    JSON,
    MAYBE_INSTANT,
    MAYBE_TEXT,
    TEXT,
    WHOLE,
    component,
    operation,
    query,
    record,
)
from delivery.api import schemas
from delivery.api.schemas import said

STATES = ("open", "parked", "blocked")
LANE = component(
    "Lane",
    record(
        id=schemas.public_id("lan", "Stands for consumer and key."),
        channel=TEXT,
        consumer=said(TEXT, "The consumer's client id."),
        ordering_key=TEXT,
        state=said(schemas.one_of(STATES), "blocked: its head is dead, and holds the others."),
        head=said(MAYBE_TEXT, "The delivery that may go; null while none may."),
        head_at=said(INSTANT, "Since when it is the head."),
        waiting_count=said(WHOLE, "Deliveries behind the head."),
        most_per_second=said(
            {"type": ["number", "null"]},
            "Messages of one key that the consumer takes at most, by its latest deliveries: about "
            "1 / answer time. Null before the first one.",
        ),
        parked_at=MAYBE_INSTANT,
        blocked_at=MAYBE_INSTANT,
        url=said(schemas.ADDRESS, "The lane."),
    ),
)
LANES = component("Lanes", record(items=schemas.list_of(LANE)))
SKIP = component(
    "Skip",
    {
        "type": "object",
        "properties": {
            "head": schemas.public_id("dlv", "The delivery to pass over; else whichever it is."),
            "reason": schemas.REASON,
        },
        "additionalProperties": False,
    },
)
_LANE = OpenApiParameter("lane_id", schemas.public_id("lan"), OpenApiParameter.PATH)
_ONE = (CHANNEL, CLIENT_ID, _LANE)
_BODY = (400, 411, 413, 415, 422)

list_lanes = operation(
    "listLanes",
    "List the ordering keys of a consumer",
    tag="Lanes",
    answers={200: LANES},
    errors=(404, 422),
    parameters=(
        CHANNEL,
        CLIENT_ID,
        query("state", "", schemas.one_of(STATES)),
        query("ordering_key", "This key alone."),
        query("limit", "At most so many.", {"type": "integer", "minimum": 1, "maximum": 200}),
    ),
)
get_lane = operation(
    "getLane",
    "Get an ordering key of a consumer",
    tag="Lanes",
    answers={200: LANE},
    errors=(404,),
    parameters=_ONE,
)
park_lane = operation(
    "parkLane",
    "Park an ordering key",
    tag="Lanes",
    body={JSON: schemas.REPAIR},
    answers={200: LANE},
    errors=(404, *_BODY),
    parameters=_ONE,
)
resume_lane = operation(
    "resumeLane",
    "Resume a parked ordering key",
    tag="Lanes",
    body={JSON: schemas.REPAIR},
    answers={200: LANE},
    errors=(404, *_BODY),
    parameters=_ONE,
)
skip_lane = operation(
    "skipLane",
    "Skip the head of an ordering key",
    tag="Lanes",
    body={JSON: SKIP},
    answers={200: LANE},
    errors=(404, 409, *_BODY),
    parameters=_ONE,
)
