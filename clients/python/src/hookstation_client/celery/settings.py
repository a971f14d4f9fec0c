"""``app.conf``: the supported settings and their supported values."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from hookstation_client.celery.exceptions import NotCovered

DEFAULTS: dict[str, Any] = {
    "accept_content": ["json"],
    "beat_schedule": {},
    "broker_connection_retry_on_startup": True,
    "broker_transport_options": {},
    "broker_url": None,
    "enable_utc": True,
    "imports": (),
    "include": (),
    "result_backend": None,
    "result_expires": timedelta(days=1),
    "result_serializer": "json",
    "task_acks_late": None,
    "task_always_eager": False,
    "task_create_missing_queues": True,
    "task_default_priority": None,
    "task_default_queue": "celery",
    "task_default_rate_limit": None,
    "task_eager_propagates": False,
    "task_ignore_result": False,
    "task_reject_on_worker_lost": True,
    "task_routes": None,
    "task_serializer": "json",
    "task_store_errors_even_if_ignored": False,
    "task_track_started": False,
    "timezone": "UTC",
    "worker_concurrency": 4,
    "worker_prefetch_multiplier": 1,
    # Not in Celery.
    "webhook_secrets": (),
}
FIXED: dict[str, tuple[Any, ...]] = {
    "accept_content": (["json"], ("json",), {"json"}, ["application/json"]),
    "broker_connection_retry_on_startup": (True,),
    "enable_utc": (True,),
    "result_serializer": ("json",),
    "task_create_missing_queues": (True,),
    "task_reject_on_worker_lost": (True,),
    "task_serializer": ("json",),
    "task_track_started": (False,),
    "worker_prefetch_multiplier": (1,),
}
"""Settings with only one supported value; any other would have no effect."""
TRANSPORT_OPTIONS = {"visibility_timeout", "queue_order_strategy", "priority_steps", "sep"}


class Settings(dict[str, Any]):
    """The settings, as attributes and as items. An unsupported one raises NotCovered."""

    def __init__(self) -> None:
        super().__init__(DEFAULTS)

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in DEFAULTS:
            raise NotCovered(f"the setting {name}")
        if value is not None and value not in FIXED.get(name, (value,)):
            raise NotCovered(f"the setting {name}={value!r}")
        if name == "broker_transport_options" and (unknown := set(value) - TRANSPORT_OPTIONS):
            raise NotCovered(f"broker_transport_options[{', '.join(sorted(unknown))}]")
        super().__setitem__(name, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several settings."""
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def read(self, source: Any, namespace: str | None) -> None:
        """Read settings from a module, an object or a mapping, or from the name of one.

        With a ``namespace``, reads upper-case names that begin with it. Without one, reads
        lower-case names like Celery's, and ignores other names of modules and objects.
        """
        found = _found(source)
        items = found.items() if isinstance(found, Mapping) else vars(found).items()
        prefix = f"{namespace}_" if namespace else ""
        for name, value in items:
            if namespace:
                if name.startswith(prefix):
                    self[name[len(prefix) :].lower()] = value
            elif name in DEFAULTS or (isinstance(found, Mapping) and not name.startswith("_")):
                self[name] = value
            elif name.split("_")[0] in _FIRST_WORDS and name.islower() and not callable(value):
                raise NotCovered(f"the setting {name}")

    def seconds_of(self, name: str) -> float:
        """Return a duration in seconds; the setting is a number or a timedelta."""
        value = self[name]
        return value.total_seconds() if isinstance(value, timedelta) else float(value)

    @property
    def address(self) -> tuple[str, str | None]:
        """URL and key of the broker, from ``HOOKSTATION_URL`` or else from ``broker_url``.

        The environment has precedence, like ``CELERY_BROKER_URL`` in Celery. Raises
        ImproperlyConfigured if ``broker_url`` names another kind of broker.
        """
        from hookstation_client.celery.exceptions import ImproperlyConfigured  # noqa: PLC0415

        key = os.environ.get("HOOKSTATION_KEY")
        if url := os.environ.get("HOOKSTATION_URL"):
            return url, key
        url = self.configured_broker or ""
        scheme, _, rest = url.partition("://")
        if scheme not in {"http", "https"}:
            raise ImproperlyConfigured(
                f"broker_url is of the kind {scheme!r}; set HOOKSTATION_URL and HOOKSTATION_KEY, "
                "or broker_url='https://:hsk_...@broker.example'."
            )
        credentials, at, host = rest.rpartition("@")
        return f"{scheme}://{host}", credentials.rpartition(":")[2] if at else key

    @property
    def configured_broker(self) -> str | None:
        """The broker URL that Celery would use."""
        return os.environ.get("CELERY_BROKER_URL") or self.broker_url

    def priority(self, given: int | None) -> int:
        """Convert a priority of Celery to the broker's (docs/clients/celery.md, "Priorities").

        Celery's brokers differ: with RabbitMQ 9 is the most urgent, with Redis 0. The meaning
        follows the broker that the application is configured for.
        """
        given = self.task_default_priority if given is None else given
        return self.priority_of_broker(min(9, max(0, given or 0)))

    def priority_of_broker(self, priority: int) -> int:
        """Convert between both orders; the function is its own inverse."""
        scheme = (self.configured_broker or "").partition("://")[0]
        of_redis = {"queue_order_strategy", "priority_steps", "sep"}
        if of_redis & set(self.broker_transport_options) or scheme in _REDIS:
            return 9 - priority
        return priority


_REDIS = {"redis", "rediss", "sentinel", "redis+socket"}
_FIRST_WORDS = {"task", "broker", "result", "worker", "beat"}


def _found(source: Any) -> Any:
    if not isinstance(source, str):
        return source
    module, _, name = source.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        module, _, name = source.rpartition(".")
        found = importlib.import_module(module)
    return getattr(found, name) if name else found
