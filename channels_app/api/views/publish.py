"""Publish: one request, one message; 2xx means that it is stored (S0-21, S0-26)."""

import json
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from channels_app import clock
from channels_app.api import openapi, publication
from channels_app.api.base import ApiView, read_body
from channels_app.api.problems import ApiProblem
from channels_app.conf import MAX_IDEMPOTENCY_KEY, MAX_ORDERING_KEY, conf
from channels_app.directory import ChannelView, directory
from channels_app.errors import NotFound
from channels_app.models import Producer
from channels_app.rules import ids, times
from channels_app.steps import accept, throttle
from channels_app.steps.accept import Accepted, Publication

MOST_COUNTS = 10_000
CONFLICT = "The key already stands for a message with another body; nothing was stored."

PUBLISHED = openapi.component(
    "Published",
    openapi.record(
        id={"type": "string", "pattern": "^msg_[0-7][0-9a-hjkmnp-tv-z]{12}$"},
        duplicate={"type": "boolean", "description": "The key stood for this message already."},
        matched_consumers={"type": "integer", "minimum": 0},
        due_at=openapi.INSTANT,
        url={"type": "string", "format": "uri"},
    ),
)
PARAMETERS = (
    openapi.CHANNEL,
    openapi.header(
        "Idempotency-Key",
        "A repeat within the channel's window answers 200 with the first id.",
        {"type": "string", "minLength": 1, "maxLength": MAX_IDEMPOTENCY_KEY},
    ),
    openapi.header(
        "Hookstation-Event-Type", "Matched against filters, validated against its schema."
    ),
    openapi.header(
        "Hookstation-Priority",
        "0 (lowest) to 9; the producer's default without it.",
        {"type": "integer", "minimum": 0, "maximum": 9},
    ),
    openapi.header(
        "Hookstation-Deliver-At",
        "Not before this instant: RFC 3339 or milliseconds since 1970. Not with Delay.",
    ),
    openapi.header(
        "Hookstation-Delay",
        "Milliseconds from acceptance.",
        {"type": "integer", "minimum": 0, "maximum": times.LONGEST_DELAY_MS},
    ),
    openapi.header("Hookstation-Expires-At", "Not sent after this instant, which is after due."),
    openapi.header(
        "Hookstation-Ordering-Key",
        "Sent along with the message.",
        {"type": "string", "minLength": 1, "maxLength": MAX_ORDERING_KEY},
    ),
    openapi.header("traceparent", "Forwarded, as tracestate, baggage and Hookstation-Header-*."),
    OpenApiParameter(
        "Location", str, OpenApiParameter.HEADER, description="url", response=[200, 202]
    ),
)


class PublishView(ApiView):
    """The messages of a channel, as their producers see it."""

    scopes = {"POST": ("publish",)}

    @openapi.operation(
        "publish_message",
        tag="Messages",
        body={"*/*": {"type": "string", "format": "binary"}},
        optional=True,
        answers={202: PUBLISHED, 200: PUBLISHED},
        errors=(400, 404, 409, 411, 413, 415, 422, 429),
        parameters=PARAMETERS,
    )
    def post(self, request: Request, channel: str) -> HttpResponse:
        """Store the request's body as one message."""
        view = channel_of(channel)
        producer = self.caller.producer
        message = publication.from_headers(request.META, view, producer, clock.now())
        check_rate(producer, 1)
        body = read_body(request._request, view.max_body_bytes)
        message = publication.with_body(message, body, view)
        (result,) = accept.accept(view, producer.id if producer else None, [message])
        if result.conflict:
            raise ApiProblem(409, "idempotency_conflict", CONFLICT, field="Idempotency-Key")
        shown = show(view, message, result)
        status = 200 if result.duplicate else 202
        return _answer(shown, status, {"Location": shown["url"]})


def channel_of(slug: str) -> ChannelView:
    """The channel to publish on. Raises NotFound."""
    view = directory.channel(slug)
    if view is None:
        raise NotFound("unknown_channel", f"There is no channel {slug}.")
    return view


def check_rate(producer: Producer | None, count: int) -> None:
    """Raises ApiProblem (429) over the producer's rate."""
    wait = throttle.take(producer, count)
    if wait is not None:
        detail = f"The producer is over its rate; try again in {wait:.3f} seconds."
        raise ApiProblem(429, "rate_limited", detail, retry_after_s=wait)


def show(channel: ChannelView, message: Publication, result: Accepted) -> dict[str, Any]:
    """What the producer is told of a stored message."""
    public = ids.to_public(ids.MESSAGE, result.message_id)
    return {
        "id": public,
        "duplicate": result.duplicate,
        "matched_consumers": _matched(channel, message.event_type),
        "due_at": times.text(result.due_at),
        "url": f"{conf().public_url}/api/v1/messages/{public}",
    }


_counts: dict[tuple[str, str], tuple[ChannelView, int]] = {}


def _matched(channel: ChannelView, event_type: str) -> int:
    # Asked for every message, and a channel may have ten thousand consumers. The directory hands
    # out the same view until something changes.
    kept = _counts.get((channel.slug, event_type))
    if kept is None or kept[0] is not channel:
        if len(_counts) > MOST_COUNTS:
            _counts.clear()
        count = sum(consumer.wants(event_type) for consumer in channel.consumers)
        kept = _counts[channel.slug, event_type] = (channel, count)
    return kept[1]


_compact = json.JSONEncoder(separators=(",", ":")).encode


def _answer(body: object, status: int, headers: dict[str, str]) -> HttpResponse:
    # Without DRF's renderers: this is the answer that is given most often.
    return HttpResponse(
        _compact(body), status=status, content_type="application/json", headers=headers
    )
