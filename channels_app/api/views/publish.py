"""Publish one message per request; a 2xx response means that it is stored (S0-21, S0-26).

REST framework's view and the fast path (broker_site/server/fast_path.py) both use `publish`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from channels_app.access.principal import Principal
from channels_app.api import fast_path, openapi
from channels_app.api.base import ApiView
from channels_app.api.fast_path import Response
from channels_app.conf import MAX_IDEMPOTENCY_KEY, MAX_ORDERING_KEY
from channels_app.core import times
from channels_app.core.errors import BrokerError, Conflict
from channels_app.core.sequence import MAX_NUMBER
from channels_app.database import clock
from channels_app.ingest import accept, limits, publication, sequencing
from channels_app.ingest.accept import Accepted, Publication
from channels_app.ingest.body import read_body, whole_json
from channels_app.registry.cache import ChannelConfig

SMALL_DIGITS = 5
"""A body whose Content-Length has at most so many digits is read before the quota is checked:
checking once is cheaper."""
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


def answer(meta: Mapping[str, Any], read: Callable[[int], bytes], channel: str) -> Response:
    """Authenticate the caller from ``meta``, and store the body behind ``read`` as one message.

    Raises what the API's views raise. Nothing was stored then, unless the database connection broke
    during the commit (503).
    """
    principal = fast_path.principal_of(meta, publication.SCOPES, channel, publication.HEADERS)
    return publish(principal, meta, read, channel)


def publish(
    principal: Principal, meta: Mapping[str, Any], read: Callable[[int], bytes], channel: str
) -> Response:
    """As ``answer``, for an authorized caller."""
    # Authentication has just refreshed the cache.
    config = publication.channel_of(channel, refresh=False)
    producer = principal.producer
    message = publication.from_headers(meta, config, producer, clock.now())
    publication.check_rate(producer, 1)
    producer_id = principal.producer_id
    if not _is_small(meta):
        limits.check(config, producer_id)
    check = None if meta.get("CONTENT_LENGTH") else _check_of(meta)
    body = read_body(principal, meta, read, config.max_body_bytes, check=check)
    message = publication.with_body(message, body, config)
    if message.producer_seq is None:
        (result,) = accept.accept(config, producer_id, [message])
    else:
        result = _in_turn(config, message, principal)
    if result.conflict:
        raise Conflict("idempotency_conflict", publication.CONFLICT, field="Idempotency-Key")
    shown = publication.show(config, message, result)
    status = 200 if result.duplicate else 202
    return Response(status, fast_path.to_json(shown), [("Location", shown["url"])])


class PublishView(ApiView):
    """The messages of a channel, for their producers."""

    scopes = {"POST": publication.SCOPES}

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
        done = publish(self.principal, request.META, request._request.read, channel)
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


def _is_small(meta: Mapping[str, Any]) -> bool:
    announced = meta.get("CONTENT_LENGTH") or ""
    return announced.isdecimal() and len(announced) <= SMALL_DIGITS


def _check_of(meta: Mapping[str, Any]) -> Callable[[bytes], None] | None:
    """What notices that a body is incomplete; None if nothing does."""
    kind = meta.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    return whole_json if kind == "application/json" or kind.endswith("+json") else None


def _in_turn(config: ChannelConfig, message: Publication, principal: Principal) -> Accepted:
    (result,) = sequencing.accept_in_sequence(
        config, principal.producer_id, [message], principal.owner
    )
    if isinstance(result, BrokerError):
        result.field = "Hookstation-Producer-Seq"
        raise result
    return result
