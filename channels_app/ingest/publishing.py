"""Look up the channel, check the producer's rate, and describe what was stored, for every door."""

from typing import Any

from channels_app.conf import conf
from channels_app.core import ids, times
from channels_app.core.errors import NotFound, RateLimited
from channels_app.ingest import limits
from channels_app.ingest.accept import Accepted, Publication
from channels_app.models import Producer
from channels_app.registry.cache import ChannelConfig, config_cache

SCOPES = ("publish",)
CONFLICT = "The key was already used for a message with another body; nothing was stored."


def channel_of(slug: str, *, refresh: bool = True) -> ChannelConfig:
    """The channel from the config cache. Raises NotFound."""
    channel = config_cache.channel(slug, refresh=refresh)
    if channel is None:
        raise NotFound("unknown_channel", f"There is no channel {slug}.")
    return channel


def check_rate(producer: Producer | None, count: int) -> None:
    """Raise RateLimited if the producer is over its rate."""
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
