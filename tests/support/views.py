"""Create configuration objects without tables."""

from typing import Any

from channels_app.core import backoff
from channels_app.core.consumer_config import ConsumerConfig


def consumer_view(**values: Any) -> ConsumerConfig:
    """Return the configuration of a push consumer with these settings."""
    given: dict[str, Any] = {
        "id": 1,
        "client_id": f"consumer-{values.get('id', 1)}",
        "channel_id": 1,
        "channel_slug": "channel",
        "mode": "push",
        "state": "active",
        "halted": False,
        "url": "http://127.0.0.1:9/",
        "event_types": (),
        "timeout_ms": 15_000,
        "retry": backoff.resolve_rule([1], 3),
        "rate": None,
        "max_in_flight": 1,
        "team_id": None,
        "version": 1,
    }
    return ConsumerConfig(**(given | values))
