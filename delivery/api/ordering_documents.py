"""Describe the operations on ordering keys for OpenAPI."""

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
from delivery.api.schemas import described

STATES = ("open", "paused", "blocked")
ORDERING_KEY = component(
    "OrderingKey",
    record(
        id=schemas.public_id("oky", "Identifies consumer and key."),
        channel=TEXT,
        consumer=described(TEXT, "The consumer's client id."),
        ordering_key=TEXT,
        state=described(schemas.one_of(STATES), "blocked: a dead head holds the others back."),
        head=described(MAYBE_TEXT, "The delivery that may be sent; null if none may."),
        head_at=described(INSTANT, "When it became the head."),
        waiting_count=described(WHOLE, "Deliveries behind the head."),
        most_per_second=described(
            {"type": ["number", "null"]},
            "Estimated maximum messages of one key per second, from the consumer's latest "
            "deliveries: about 1 / response time. Null before the first one.",
        ),
        paused_at=MAYBE_INSTANT,
        blocked_at=MAYBE_INSTANT,
        url=described(schemas.ADDRESS, "The ordering key."),
    ),
)
ORDERING_KEYS = component("OrderingKeys", record(items=schemas.list_of(ORDERING_KEY)))
SKIP = component(
    "Skip",
    {
        "type": "object",
        "properties": {
            "head": schemas.public_id("dlv", "The delivery to skip; default: the current head."),
            "reason": schemas.REASON,
        },
        "additionalProperties": False,
    },
)
_ORDERING_KEY = OpenApiParameter("ordering_key_id", schemas.public_id("oky"), OpenApiParameter.PATH)
_ONE = (CHANNEL, CLIENT_ID, _ORDERING_KEY)
_BODY = (400, 411, 413, 415, 422)

list_ordering_keys = operation(
    "listOrderingKeys",
    "List the ordering keys of a consumer",
    tag="Ordering keys",
    answers={200: ORDERING_KEYS},
    errors=(404, 422),
    parameters=(
        CHANNEL,
        CLIENT_ID,
        query("state", "", schemas.one_of(STATES)),
        query("ordering_key", "Only this key."),
        query("limit", "Maximum items.", {"type": "integer", "minimum": 1, "maximum": 200}),
    ),
)
get_ordering_key = operation(
    "getOrderingKey",
    "Get an ordering key of a consumer",
    tag="Ordering keys",
    answers={200: ORDERING_KEY},
    errors=(404,),
    parameters=_ONE,
)
pause_ordering_key = operation(
    "pauseOrderingKey",
    "Pause an ordering key",
    tag="Ordering keys",
    body={JSON: schemas.REPAIR},
    answers={200: ORDERING_KEY},
    errors=(404, *_BODY),
    parameters=_ONE,
)
resume_ordering_key = operation(
    "resumeOrderingKey",
    "Resume a paused ordering key",
    tag="Ordering keys",
    body={JSON: schemas.REPAIR},
    answers={200: ORDERING_KEY},
    errors=(404, *_BODY),
    parameters=_ONE,
)
skip_ordering_key = operation(
    "skipOrderingKey",
    "Skip the head of an ordering key",
    tag="Ordering keys",
    body={JSON: SKIP},
    answers={200: ORDERING_KEY},
    errors=(404, 409, *_BODY),
    parameters=_ONE,
)
