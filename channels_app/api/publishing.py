"""Process one publish request, independently of the framework around it.

Both entry points use it: REST framework's view (views/publish.py) and the fast path
(broker_site/fast_path.py).
"""

from collections.abc import Callable, Mapping
from typing import Any

from channels_app.api import fast_path, publication, sequencing
from channels_app.api.authentication import Caller
from channels_app.api.base import read_body, whole_json
from channels_app.api.fast_path import Response
from channels_app.conf import conf
from channels_app.core import ids, times
from channels_app.core.errors import BrokerError, Conflict, NotFound, RateLimited
from channels_app.database import clock
from channels_app.ingest import accept, limits
from channels_app.ingest.accept import Accepted, Publication
from channels_app.models import Producer
from channels_app.registry.cache import ChannelConfig, config_cache

SCOPES = ("publish",)
SMALL_DIGITS = 5
"""A body whose Content-Length has at most so many digits is read before the quota is checked:
checking once is cheaper."""
CONFLICT = "The key was already used for a message with another body; nothing was stored."


def answer(meta: Mapping[str, Any], read: Callable[[int], bytes], channel: str) -> Response:
    """Authenticate the caller from ``meta``, and store the body behind ``read`` as one message.

    Raises what the API's views raise. Nothing was stored then, unless the database connection broke
    during the commit (503).
    """
    return publish(
        fast_path.caller_of(meta, SCOPES, channel, publication.HEADERS), meta, read, channel
    )


def publish(
    caller: Caller, meta: Mapping[str, Any], read: Callable[[int], bytes], channel: str
) -> Response:
    """As ``answer``, for an authorized caller."""
    view = channel_of(channel, refresh=False)  # authentication has just refreshed the cache
    producer = caller.producer
    message = publication.from_headers(meta, view, producer, clock.now())
    check_rate(producer, 1)
    producer_id = producer.id if producer else None
    if not _is_small(meta):
        limits.check(view, producer_id)
    check = None if meta.get("CONTENT_LENGTH") else _check_of(meta)
    body = read_body(caller, meta, read, view.max_body_bytes, check=check)
    message = publication.with_body(message, body, view)
    if message.producer_seq is None:
        (result,) = accept.accept(view, producer_id, [message])
    else:
        result = _in_turn(view, producer_id, message, caller)
    if result.conflict:
        raise Conflict("idempotency_conflict", CONFLICT, field="Idempotency-Key")
    shown = show(view, message, result)
    status = 200 if result.duplicate else 202
    return Response(status, fast_path.to_json(shown), [("Location", shown["url"])])


def _check_of(meta: Mapping[str, Any]) -> Callable[[bytes], None] | None:
    """What notices that a body is incomplete; None if nothing does."""
    kind = meta.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    return whole_json if kind == "application/json" or kind.endswith("+json") else None


def _is_small(meta: Mapping[str, Any]) -> bool:
    announced = meta.get("CONTENT_LENGTH") or ""
    return announced.isdecimal() and len(announced) <= SMALL_DIGITS


def _in_turn(
    view: ChannelConfig, producer_id: int | None, message: Publication, caller: Caller
) -> Accepted:
    (result,) = sequencing.accept_in_sequence(view, producer_id, [message], caller.owner)
    if isinstance(result, BrokerError):
        result.field = "Hookstation-Producer-Seq"
        raise result
    return result


def channel_of(slug: str, *, refresh: bool = True) -> ChannelConfig:
    """The channel from the config cache. Raises NotFound."""
    view = config_cache.channel(slug, refresh=refresh)
    if view is None:
        raise NotFound("unknown_channel", f"There is no channel {slug}.")
    return view


def check_rate(producer: Producer | None, count: int) -> None:
    """Raise BrokerError (429) if the producer is over its rate."""
    wait = limits.take_from_rate(producer, count)
    if wait is not None:
        detail = f"The producer exceeds its rate limit; try again in {wait:.3f} seconds."
        raise RateLimited("rate_limited", detail, retry_after_s=wait)


def show(channel: ChannelConfig, message: Publication, result: Accepted) -> dict[str, Any]:
    """The response for a stored message."""
    public = ids.to_public(ids.MESSAGE, result.message_id)
    return {
        "id": public,
        "duplicate": result.duplicate,
        "matched_consumers": _matched(channel, message.event_type),
        "due_at": times.text(result.due_at),
        "url": f"{conf().public_url}/api/v1/messages/{public}",
    }


def _matched(channel: ChannelConfig, event_type: str) -> int:
    count = len(channel.wanting(event_type))
    return min(count, 1) if channel.kind == "queue" else count
