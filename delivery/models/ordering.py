"""Ordering keys of consumers, and acknowledgements that came before their attempts were recorded.

Key is one key of an ordered consumer, with a head that may be sent and deliveries that wait behind
it. PendingAck stores early acknowledgements, Correlation the ids that providers give.
"""

from django.db import models

from channels_app.models.base import ExactCharField
from channels_app.models.consumer import Consumer


class OrderingKey(models.Model):
    """An ordering key. Exists while one of its deliveries is open or it is paused (S3-09, S3-24).

    Its row is the lock of the key: only its holder changes the key's deliveries
    (delivery/ordering/key_queue.py).
    """

    id = models.BigIntegerField(primary_key=True)
    """Consumer and key packed into one number (core/ordering.py)."""
    consumer = models.ForeignKey(
        Consumer, models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    ordering_key = ExactCharField(max_length=255)
    head_id = models.BigIntegerField(null=True)
    """The delivery that may be sent; null if the key is paused and nothing is in flight."""
    head_at = models.DateTimeField()
    """When that delivery became the head."""
    head_place = models.BigIntegerField(default=0)
    """Entries up to this place have left; the search for the next head begins after it."""
    last_place = models.BigIntegerField(default=0)
    waiting_count = models.IntegerField(default=0)
    """Deliveries behind the head."""
    paused_at = models.DateTimeField(null=True)
    """When a person paused the key; null if it is not paused."""
    blocked_at = models.DateTimeField(null=True)
    """When its head died, for a consumer whose keys stop at a dead letter."""

    STATES = {
        "open": models.Q(paused_at=None, blocked_at=None),
        "paused": models.Q(paused_at__isnull=False),
        "blocked": models.Q(paused_at=None, blocked_at__isnull=False),
    }

    class Meta:
        # lists of a consumer's keys, oldest heads first; the search in queue/ordering_keys
        indexes = [models.Index(fields=["consumer", "head_at"], name="key_of_consumer")]

    def __str__(self) -> str:
        return self.ordering_key

    @property
    def state(self) -> str:
        """``paused`` by a person, ``blocked`` by a dead head, or ``open``."""
        return "paused" if self.paused_at else "blocked" if self.blocked_at else "open"


class OrderingWaiter(models.Model):
    """A delivery behind the head of its key, with the ``due_at`` for when it is the head."""

    delivery_id = models.BigIntegerField(primary_key=True)
    key_number = models.BigIntegerField()
    place = models.BigIntegerField()
    due_at = models.DateTimeField()

    class Meta:
        constraints = [
            # the next entry of a key
            models.UniqueConstraint(fields=["key_number", "place"], name="one_waiter_per_place")
        ]

    def __str__(self) -> str:
        return f"{self.key_number}/{self.place}"


class PendingAck(models.Model):
    """An acknowledgement kept until its attempt is recorded and applies it (queue/settle)."""

    delivery_id = models.BigIntegerField(primary_key=True)
    ok = models.BooleanField()
    said_at = models.DateTimeField()

    class Meta:
        # acks/callbacks: entries without a recorded attempt
        indexes = [models.Index(fields=["said_at"], name="early_ack_age")]

    def __str__(self) -> str:
        return "ok" if self.ok else "failed"


class Correlation(models.Model):
    """A provider's id for one delivery, or a callback with an id that is not known yet."""

    id = models.BigIntegerField(primary_key=True)
    """Consumer and the provider's id packed into one number (core/acks.py)."""
    delivery_id = models.BigIntegerField(null=True)
    """Null until the response that contains the id is recorded."""
    ok = models.BooleanField(null=True)
    """The acknowledgement received before that; null if there was none."""
    noted_at = models.DateTimeField()

    class Meta:
        # acks/callbacks: ids too old for a callback
        indexes = [models.Index(fields=["noted_at"], name="correlation_age")]

    def __str__(self) -> str:
        return f"{self.id:x}"
