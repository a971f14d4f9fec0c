"""Define Consumer, an endpoint registered on a channel, and its signing secrets."""

from django.db import models

from channels_app.core import consumer_config
from channels_app.core.consumer_config import ConsumerStatus
from channels_app.models.base import ExactCharField, Versioned
from channels_app.models.channel import Channel
from channels_app.models.team import Team


class Consumer(Versioned):
    """A receiver of a channel's messages (S0-12). Null limits mean the installation's."""

    steers_pumps = True
    natural_key = "channel_id", "client_id"

    class Mode(models.TextChoices):
        PUSH = "push"
        PULL = "pull"

    class State(models.TextChoices):
        ACTIVE = "active"
        PAUSED = "paused"
        """By a person; its deliveries wait."""
        DISABLED = "disabled"
        """By the broker (after a 410 or days of failure); its deliveries wait."""
        RETIRED = "retired"
        """Deleted: receives nothing more, its history stays."""

    class HeadOfLine(models.TextChoices):
        SKIP = "skip"
        """A dead delivery does not stop those behind it."""
        BLOCK = "block"
        """The ordering key is blocked until a person replays or skips the dead delivery."""

    class HttpVersion(models.TextChoices):
        AUTO = "auto", "Auto"
        """HTTP/2 over TLS if the endpoint offers it, else HTTP/1.1."""
        HTTP_1_1 = "1.1", "HTTP/1.1"
        """For an endpoint, or a proxy in front of it, whose HTTP/2 is broken."""

    class LapsedLeases(models.TextChoices):
        FREE = "free"
        """Not an attempt, up to twenty times: the worker probably crashed for another reason."""
        CHARGED = "charged"
        """Each receive counts as an attempt, as in Amazon SQS for ``maxReceiveCount``."""

    channel = models.ForeignKey(Channel, models.PROTECT, related_name="consumers")
    client_id = ExactCharField(max_length=100)
    description = models.TextField(blank=True, default="")
    team = models.ForeignKey(Team, models.PROTECT, null=True, blank=True, related_name="consumers")
    mode = models.CharField(max_length=10, choices=Mode.choices, default=Mode.PUSH)
    state = models.CharField(max_length=10, choices=State.choices, default=State.ACTIVE)
    state_reason = models.CharField(max_length=200, blank=True, default="")
    state_changed_at = models.DateTimeField(null=True, blank=True)
    url = ExactCharField(max_length=2048, blank=True, default="")
    event_types = models.JSONField(default=list, blank=True)
    """Names and ``order.*`` patterns; empty means everything."""
    headers_sealed = models.BinaryField(default=bytes, blank=True)
    """Static headers as encrypted JSON, since they may contain credentials."""
    signing = models.JSONField(default=list, blank=True)
    """Signature schemes besides ``v1``: ``["v1a"]`` adds Ed25519."""
    timeout_ms = models.PositiveIntegerField(null=True, blank=True)
    max_attempts = models.PositiveIntegerField(null=True, blank=True)
    retry = models.JSONField(null=True, blank=True)
    retry_overrides = models.JSONField(default=list, blank=True)
    """Retry settings for some event types (core/consumer_config.py). The first match applies."""
    rate_per_second = models.FloatField(null=True, blank=True)
    rate_burst = models.PositiveIntegerField(default=1)
    max_in_flight = models.PositiveIntegerField(null=True, blank=True)
    max_pumps = models.PositiveSmallIntegerField(default=1)
    """How many pumps may send to it at the same time; each gets a share of the limits."""
    http_version = models.CharField(
        "HTTP version", max_length=4, choices=HttpVersion.choices, default=HttpVersion.AUTO
    )
    ordering = models.BooleanField(default=False)
    """Whether deliveries with the same ordering key are sent one after another."""
    head_of_line = models.CharField(
        max_length=5, choices=HeadOfLine.choices, default=HeadOfLine.SKIP
    )
    ack = models.JSONField(null=True, blank=True)
    lapsed_leases = models.CharField(
        max_length=7, choices=LapsedLeases.choices, default=LapsedLeases.FREE
    )
    """Pull consumers only: whether a lease that ends without an acknowledgement is an attempt."""
    dead_letter_channel = models.ForeignKey(
        Channel, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    """Channel on which the messages of its dead deliveries are published (S0-77)."""
    inbound_digest = models.CharField(max_length=64, null=True, unique=True, editable=False)  # noqa: DJ001 - several without one
    """Digest of the address that its provider calls back (registry/inbound_addresses.py)."""
    inbound_sealed = models.BinaryField(default=bytes)
    """That address, and the provider's signing secret, as encrypted JSON."""

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["channel", "client_id"], name="one_client_id_per_channel"
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=["active", "paused", "disabled", "retired"]),
                name="known_consumer_state",
            ),
            models.CheckConstraint(
                condition=models.Q(mode__in=["push", "pull"]), name="known_consumer_mode"
            ),
        ]

    def __str__(self) -> str:
        return self.client_id

    @property
    def condition(self) -> ConsumerStatus:
        """Its status, as all pages and the API show it. Lists should select ``health`` as well."""
        health = getattr(self, "health", None)
        return consumer_config.of(
            self.state,
            is_pull=self.mode == self.Mode.PULL,
            is_open=health is not None and health.circuit == "open",
            is_failing=health is not None and health.failing_since is not None,
            ever_succeeded=health is not None and health.last_success_at is not None,
            ever_failed=health is not None and health.last_failure_at is not None,
        )


class ConsumerSecret(models.Model):
    """One signing secret of a consumer; several are valid while a rotation overlaps."""

    class Scheme(models.TextChoices):
        V1 = "v1"
        """HMAC-SHA256."""
        V1A = "v1a"
        """Ed25519."""

    consumer = models.ForeignKey(Consumer, models.CASCADE, related_name="secrets")
    scheme = models.CharField(max_length=4, choices=Scheme.choices, default=Scheme.V1)
    sealed = models.BinaryField()
    key_id = models.CharField(max_length=8)
    """Id of the encryption key used, so that a rotation finds the rows to re-encrypt."""
    public_key = models.CharField(max_length=100, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    """When it stops signing; null while it is current."""

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(scheme__in=["v1", "v1a"]), name="known_signing_scheme"
            )
        ]

    def __str__(self) -> str:
        return f"{self.scheme} secret of {self.consumer}"
