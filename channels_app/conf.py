"""The settings that this app uses: each with its variable, default and help, in this one place.

The app above adds its own: `delivery.conf`, then `broker_site.env`, which reads them all.
"""

from dataclasses import dataclass
from functools import cache

from django.conf import settings

from channels_app.core import times
from channels_app.core.encryption import Keyring
from channels_app.core.networks import Networks, parse_networks
from channels_app.core.rate_limits import Quota
from channels_app.core.settings import boolean, not_negative, positive, setting, words

INSTALLATION = "installation"
"""Tag of the system checks of an operator's settings. Our commands run only these; ``manage.py
check`` also checks the code, which imports every page and takes longer than a broker's start."""
MAX_TIMEOUT_MS = 300_000
"""Longest delivery timeout a consumer may ask for (S0-73)."""
MAX_BATCH_ITEMS = 1000
MAX_IDEMPOTENCY_KEY = 255
MAX_ORDERING_KEY = 255
MAX_BODY_BYTES = 64 * 1024**2
"""Maximum of the two body size settings. Web process, database and pump hold a whole body or batch
in memory, sometimes several copies."""


def _body_size(text: str) -> int:
    number = positive(text)
    if number > MAX_BODY_BYTES:
        raise ValueError(
            f"expected at most {MAX_BODY_BYTES}, store larger bodies elsewhere and publish a link"
        )
    return number


def _site(text: str) -> str:
    return text.rstrip("/")


def _days(text: str) -> int:
    return min(positive(text), times.MAX_DAYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """Limits and defaults for accepting messages and registering objects (docs/settings.md)."""

    encryption_keys: tuple[str, ...] = setting(
        "ENCRYPTION_KEYS",
        (),
        words,
        "Keys that decrypt stored bodies and secrets; the first one encrypts.",
        secret=True,
    )
    require_body_digests: bool = setting(
        "REQUIRE_BODY_DIGESTS", False, boolean, "Refuse to send stored bodies without a digest."
    )
    public_url: str = setting(
        "PUBLIC_URL",
        "http://127.0.0.1:8000",
        _site,
        "URL at which people and producers reach the broker.",
    )
    max_body_bytes: int = setting(
        "MAX_BODY_BYTES", 1024 * 1024, _body_size, "Largest message body; a channel may allow less."
    )
    max_batch_bytes: int = setting(
        "MAX_BATCH_BYTES", 16 * 1024 * 1024, _body_size, "Largest request of the batch endpoint."
    )
    allowed_targets: str = setting(
        "ALLOWED_TARGETS", "", str, "Private networks that the broker may call, as CIDR."
    )
    https_only: bool = setting("HTTPS_ONLY", False, boolean, "Refuse consumers with http:// URLs.")
    timeout_ms: int = setting("DELIVERY_TIMEOUT_MS", 15000, positive, "Timeout of one attempt.")
    max_attempts: int = setting(
        "MAX_ATTEMPTS", 10, positive, "Failed attempts after which a delivery is dead."
    )
    max_in_flight: int = setting(
        "MAX_IN_FLIGHT", 64, positive, "Most open requests to one consumer."
    )
    channel_waiting_messages: int = setting(
        "CHANNEL_WAITING_MESSAGES",
        10_000_000,
        not_negative,
        "Unfinished messages in a channel without a limit of its own; 0: no limit.",
    )
    channel_waiting_bytes: int = setting(
        "CHANNEL_WAITING_BYTES",
        50 * 1024**3,
        not_negative,
        "Total bytes of their bodies; 0: no limit.",
    )
    team_waiting_messages: int = setting(
        "TEAM_WAITING_MESSAGES",
        10_000_000,
        not_negative,
        "Unfinished messages of a team without a limit of its own; 0: no limit.",
    )
    team_waiting_bytes: int = setting(
        "TEAM_WAITING_BYTES",
        50 * 1024**3,
        not_negative,
        "Total bytes of their bodies; 0: no limit.",
    )
    disk_reserve_bytes: int = setting(
        "DISK_RESERVE_BYTES",
        256 * 1024**2,
        not_negative,
        "Free disk space below which messages are refused; 0: never.",
    )
    max_future_days: int = setting(
        "MAX_FUTURE_DAYS", 3660, _days, "Days ahead that a message may be scheduled."
    )
    idempotency_window_s: int = setting(
        "IDEMPOTENCY_WINDOW_S",
        86400,
        positive,
        "Seconds for which a channel remembers idempotency keys.",
    )
    retention_days: int = setting(
        "RETENTION_DAYS", 30, positive, "Days for which finished messages are kept."
    )
    dead_retention_days: int = setting(
        "DEAD_RETENTION_DAYS", 90, positive, "Days for which dead letters are kept."
    )
    failpoint: str = setting(
        "FAILPOINT", "", str, "File that names a step at which a process kills itself; for tests."
    )

    @property
    def allowed_networks(self) -> Networks:
        """Private networks that the broker may call."""
        return _networks(self.allowed_targets)

    @property
    def channel_quota(self) -> Quota:
        """Of a channel without limits of its own."""
        return Quota(self.channel_waiting_messages, self.channel_waiting_bytes)

    @property
    def team_quota(self) -> Quota:
        """Of a team without limits of its own."""
        return Quota(self.team_waiting_messages, self.team_waiting_bytes)


def conf() -> Conf:
    """This process's settings."""
    environment: Conf = settings.ENVIRONMENT
    return environment


@cache
def keyring() -> Keyring:
    """The encryption keys of the settings; `registry.data_encryption` chooses which one encrypts.

    The keys derived from SECRET_KEY and SECRET_KEY_FALLBACKS come last. Without other keys they are
    the only ones.
    """
    secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return Keyring.from_texts(list(conf().encryption_keys), secrets)


@cache
def _networks(text: str) -> Networks:
    return parse_networks(text)
