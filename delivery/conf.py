"""The settings that delivery uses: typed, frozen, read once."""

import socket
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

from django.conf import settings

from channels_app.core.networks import Networks, parse_networks


@dataclass(frozen=True, slots=True)
class Conf:
    """Limits and intervals of delivery (docs/settings.md)."""

    rational_delay_ms: int
    connect_timeout_ms: int
    lease_grace_ms: int
    excerpt_bytes: int
    max_response_bytes: int
    breaker_failures: int
    breaker_base_s: float
    breaker_cap_s: float
    disable_after_days: int
    pumps: int
    pump_in_flight: int
    pump_body_bytes: int
    pump_lifetime_s: int
    poll_s: float
    max_clock_offset_s: int
    """Largest difference to the database's clock at which pumps still claim; 0: no limit."""
    wake: bool
    wake_bind: str
    grace_s: int
    hot_key_waiting: int
    """Deliveries behind one head above which a key is hot; 0: no limit."""
    hot_key_after: timedelta
    """Zero: never."""
    reconcile_interval: timedelta
    """Zero: never."""
    reconcile_recent: timedelta
    reconcile_full_interval: timedelta
    reconcile_grace: timedelta
    lake: str
    """Folder of the archive; empty: no archive, and retention only deletes."""
    allowed_targets: Networks
    ca_file: str
    user_agent: str
    host: str


@cache
def conf() -> Conf:
    """Return this process's settings."""
    environment = settings.ENVIRONMENT
    return Conf(
        rational_delay_ms=environment.rational_delay_ms,
        connect_timeout_ms=environment.connect_timeout_ms,
        lease_grace_ms=environment.lease_grace_ms,
        excerpt_bytes=environment.excerpt_bytes,
        max_response_bytes=environment.max_response_bytes,
        breaker_failures=environment.breaker_failures,
        breaker_base_s=environment.breaker_base_ms / 1000,
        breaker_cap_s=environment.breaker_cap_ms / 1000,
        disable_after_days=environment.disable_after_days,
        pumps=environment.pumps,
        pump_in_flight=environment.pump_in_flight,
        pump_body_bytes=environment.pump_body_bytes,
        pump_lifetime_s=environment.pump_lifetime_s,
        poll_s=environment.poll_ms / 1000,
        max_clock_offset_s=environment.max_clock_offset_s,
        wake=environment.wake,
        wake_bind=environment.wake_bind,
        grace_s=environment.grace_s,
        hot_key_waiting=environment.hot_key_waiting,
        hot_key_after=timedelta(seconds=environment.hot_key_after_s),
        reconcile_interval=timedelta(seconds=environment.reconcile_interval_s),
        reconcile_recent=timedelta(seconds=environment.reconcile_recent_s),
        reconcile_full_interval=timedelta(seconds=environment.reconcile_full_interval_s),
        reconcile_grace=timedelta(seconds=environment.reconcile_grace_s),
        lake=environment.lake,
        allowed_targets=parse_networks(environment.allowed_targets),
        ca_file=environment.ca_file,
        user_agent=f"Hookstation/{settings.VERSION}",
        host=socket.gethostname(),
    )
