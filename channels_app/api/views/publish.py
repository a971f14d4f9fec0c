"""Publish one message per request; a 2xx response means that it is stored (S0-21, S0-26)."""

from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from channels_app.api import fast_path, openapi, publishing
from channels_app.api.base import ApiView
from channels_app.conf import MAX_IDEMPOTENCY_KEY, MAX_ORDERING_KEY
from channels_app.core import times
from channels_app.core.sequence import MAX_NUMBER

RECORD = openapi.record(
    id={"type": "string", "pattern": "^msg_[0-7][0-9a-hjkmnp-tv-z]{12}$"},
    duplicate={"type": "boolean", "description": "True if the Idempotency-Key was used before."},
    matched_consumers={"type": "integer", "minimum": 0},
    due_at=openapi.INSTANT,
    url={"type": "string", "format": "uri"},
)
ANY_OBJECT = openapi.component("JsonObject", {"type": "object", "additionalProperties": True})
PUBLISHED = openapi.component("Published", RECORD)
PARAMETERS = (
    openapi.CHANNEL,
    openapi.header(
        "Idempotency-Key",
        "A repeat within the channel's window gets 200 with the id of the first message.",
        {"type": "string", "minLength": 1, "maxLength": MAX_IDEMPOTENCY_KEY},
    ),
    openapi.header(
        "Hookstation-Event-Type",
        "Name of the event type: consumers filter by it, and its schema validates the body.",
    ),
    openapi.header(
        "Hookstation-Priority",
        "0 (lowest) to 9; default: the producer's.",
        {"type": "integer", "minimum": 0, "maximum": 9},
    ),
    openapi.header(
        "Hookstation-Deliver-At",
        "Earliest delivery, RFC 3339 or milliseconds since 1970. Excludes Hookstation-Delay.",
    ),
    openapi.header(
        "Hookstation-Delay",
        "Milliseconds from acceptance to the earliest delivery.",
        {"type": "integer", "minimum": 0, "maximum": times.MAX_DELAY_MS},
    ),
    openapi.header(
        "Hookstation-Spread",
        "Maximum random extra delay in milliseconds.",
        {"type": "integer", "minimum": 0, "maximum": times.MAX_DELAY_MS},
    ),
    openapi.header(
        "Hookstation-Expires-At", "Latest delivery; must be after the earliest delivery."
    ),
    openapi.header(
        "Hookstation-Ordering-Key",
        "Messages with the same key keep their order at consumers with `ordering`.",
        {"type": "string", "minLength": 1, "maxLength": MAX_ORDERING_KEY},
    ),
    openapi.header(
        "Hookstation-Producer-Seq",
        "Number of the message within its ordering key, from 1; messages are stored in this order. "
        "0 restarts the sequence.",
        {"type": "integer", "minimum": 0, "maximum": MAX_NUMBER},
    ),
    openapi.header(
        "traceparent", "Forwarded to consumers, like tracestate, baggage and Hookstation-Header-*."
    ),
    OpenApiParameter(
        "Location",
        str,
        OpenApiParameter.HEADER,
        description="URL of the message.",
        response=[200, 202],
    ),
)


class PublishView(ApiView):
    """The messages of a channel, for their producers."""

    scopes = {"POST": publishing.SCOPES}

    @openapi.operation(
        "publishMessage",
        "Publish a message",
        tag="Messages",
        # Code generators do not know `*/*`, so these two stand for every content type.
        body={openapi.JSON: ANY_OBJECT, openapi.BYTES: {"type": "string", "format": "binary"}},
        optional=True,
        answers={202: PUBLISHED, 200: PUBLISHED},
        errors=(400, 404, 409, 411, 413, 415, 422, 429, 507),
        parameters=PARAMETERS,
    )
    def post(self, request: Request, channel: str) -> HttpResponse:
        """Store the request's body as one message, byte for byte.

        Any content type is accepted and kept, not only those listed here.
        """
        done = publishing.publish(self.caller, request.META, request._request.read, channel)
        return HttpResponse(
            done.body,
            status=done.status,
            content_type=fast_path.CONTENT_TYPE,
            headers=dict(done.headers),
        )


class RefusalView(ApiView):
    """Responds to a request that the fast path rejected, in the same way as every other view."""

    error: Exception = NotImplementedError()
    """Set through `as_view`, which only accepts existing attributes of the class."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Raise ``error`` after authentication."""
        self.perform_authentication(request)
        raise self.error
