"""Define Channel, on which messages are published, and its event types."""

from django.db import models

from channels_app.models.base import ExactCharField, Limited, Versioned


class Channel(Limited, Versioned):
    """Where producers publish and consumers register (S0-10). Null limits: the installation's."""

    steers_pumps = True

    class Exposure(models.TextChoices):
        INTERNAL = "internal"
        EXTERNAL = "external"

    class Kind(models.TextChoices):
        TOPIC = "topic"
        """Every consumer gets each message."""
        QUEUE = "queue"
        """One of the consumers gets each message."""

    class History(models.TextChoices):
        GRANTED = "granted"
        """A team can backfill messages accepted since it got access."""
        SHARED = "shared"
        """A team can backfill all stored messages."""

    class IdempotencyScope(models.TextChoices):
        PRODUCER = "producer"
        """Each producer has its own idempotency keys."""
        CHANNEL = "channel"
        """All producers share one set of keys, as in an SQS FIFO queue."""

    class Ordering(models.TextChoices):
        KEYED = "keyed"
        """Only messages with an ordering key have an order."""
        FIFO = "fifo"
        """All messages have an order: those without a key share one."""

    slug = ExactCharField(max_length=100, unique=True)
    description = models.TextField(blank=True, default="")
    exposure = models.CharField(max_length=10, choices=Exposure.choices, default=Exposure.INTERNAL)
    exposed_at = models.DateTimeField(null=True, blank=True, editable=False)
    """When it became external; null if it always was."""
    history = models.CharField(max_length=10, choices=History.choices, default=History.GRANTED)
    kind = models.CharField(max_length=10, choices=Kind.choices, default=Kind.TOPIC)
    ordering = models.CharField(max_length=10, choices=Ordering.choices, default=Ordering.KEYED)
    ordering_key_path = models.CharField(max_length=200, blank=True, default="")
    """Path of the ordering key in a JSON body, if the publisher sends none."""
    reorder_window_ms = models.PositiveIntegerField(default=500)
    """How long a numbered message waits for lower numbers (core/sequence.py)."""
    paused = models.BooleanField(default=False)
    sensitive = models.BooleanField(default=False)
    """Bodies, headers and responses need an extra permission, and are in no list."""
    encrypt_bodies = models.BooleanField(default=True)
    require_idempotency_key = models.BooleanField(default=False)
    idempotency_scope = models.CharField(
        max_length=10, choices=IdempotencyScope.choices, default=IdempotencyScope.PRODUCER
    )
    max_body_bytes = models.PositiveIntegerField(null=True, blank=True)
    content_types = models.JSONField(default=list, blank=True)
    """Media types that producers may send; empty means any."""
    idempotency_window_s = models.PositiveIntegerField(null=True, blank=True)
    max_future_days = models.PositiveIntegerField(null=True, blank=True)
    """How many days ahead messages may be scheduled."""
    retention_days = models.PositiveIntegerField(null=True, blank=True)
    dead_retention_days = models.PositiveIntegerField(null=True, blank=True)
    default_retry = models.JSONField(null=True, blank=True)
    pruned_to = models.BigIntegerField(default=0, editable=False)
    """Retention has checked the messages up to this id, which were old enough."""

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(exposure__in=["internal", "external"]), name="known_exposure"
            ),
            models.CheckConstraint(
                condition=models.Q(history__in=["granted", "shared"]), name="known_channel_history"
            ),
            models.CheckConstraint(
                condition=models.Q(kind__in=["topic", "queue"]), name="known_channel_kind"
            ),
            models.CheckConstraint(
                condition=models.Q(ordering__in=["keyed", "fifo"]), name="known_channel_ordering"
            ),
            models.CheckConstraint(
                condition=models.Q(idempotency_scope__in=["producer", "channel"]),
                name="known_idempotency_scope",
            ),
        ]

    def __str__(self) -> str:
        return self.slug


class EventType(Versioned):
    """A kind of event on a channel, with an optional JSON Schema that bodies must satisfy."""

    channel = models.ForeignKey(Channel, models.CASCADE, related_name="event_type_set")
    name = ExactCharField(max_length=128)
    producer = models.ForeignKey(
        "Producer", models.SET_NULL, null=True, blank=True, editable=False, related_name="+"
    )
    """The producer that registered it; it and its team may change it. Null: the installation."""
    description = models.TextField(blank=True, default="")
    schema = models.JSONField(null=True, blank=True)
    example = models.JSONField(null=True, blank=True)
    deprecated = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["channel", "name"], name="one_event_type_per_name")
        ]

    def __str__(self) -> str:
        return self.name
