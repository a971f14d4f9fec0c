"""Hold the settings that this app uses: typed, frozen, read once."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.conf import settings

from channels_app.core import times
from channels_app.core.encryption import Keyring
from channels_app.core.networks import Networks, parse_networks
from channels_app.core.rate_limits import Quota

INSTALLATION = "installation"
"""Tag of the system checks of an operator's settings. Our commands run only these; ``manage.py
check`` also checks the code, which imports every page and takes longer than a broker's start."""
MAX_TIMEOUT_MS = 300_000
"""Longest delivery timeout a consumer may ask for (S0-73)."""
MAX_BATCH_ITEMS = 1000
MAX_IDEMPOTENCY_KEY = 255
MAX_ORDERING_KEY = 255


@dataclass(frozen=True, slots=True)
class Conf:
    """Limits and defaults for accepting messages and registering objects (docs/settings.md)."""

    max_body_bytes: int
    max_batch_bytes: int
    max_future_days: int
    channel_quota: Quota
    """For channels without a limit of their own."""
    team_quota: Quota
    disk_reserve_bytes: int
    idempotency_window_s: int
    retention_days: int
    dead_retention_days: int
    timeout_ms: int
    max_attempts: int
    max_in_flight: int
    https_only: bool
    allowed_targets: Networks
    public_url: str
    data_dir: Path
    require_body_digests: bool
    failpoint: str


@cache
def conf() -> Conf:
    """This process's settings."""
    environment = settings.ENVIRONMENT
    return Conf(
        max_body_bytes=environment.max_body_bytes,
        max_batch_bytes=environment.max_batch_bytes,
        max_future_days=min(environment.max_future_days, times.MAX_DAYS),
        channel_quota=Quota(
            environment.channel_waiting_messages, environment.channel_waiting_bytes
        ),
        team_quota=Quota(environment.team_waiting_messages, environment.team_waiting_bytes),
        disk_reserve_bytes=environment.disk_reserve_bytes,
        idempotency_window_s=environment.idempotency_window_s,
        retention_days=environment.retention_days,
        dead_retention_days=environment.dead_retention_days,
        timeout_ms=environment.timeout_ms,
        max_attempts=environment.max_attempts,
        max_in_flight=environment.max_in_flight,
        https_only=environment.https_only,
        allowed_targets=parse_networks(environment.allowed_targets),
        public_url=settings.PUBLIC_URL,
        data_dir=settings.DATA_DIR,
        require_body_digests=environment.require_body_digests,
        failpoint=environment.failpoint,
    )


@cache
def keyring() -> Keyring:
    """The encryption keys of the settings; keystore.py chooses the one that encrypts.

    The keys derived from SECRET_KEY and SECRET_KEY_FALLBACKS come last. Without other keys they are
    the only ones.
    """
    secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return Keyring.from_texts(list(settings.ENVIRONMENT.encryption_keys), secrets)
