"""Message: what a producer was told is stored, with its body and its idempotency record."""

import hashlib

from django.db import models

from channels_app.models.base import ExactCharField, TimeOrderedKey
from channels_app.models.channel import Channel
from channels_app.models.producer import Producer
from channels_app.rules import ids


class Message(models.Model):
    """One accepted message (S0-14, S0-16).

    Foreign keys of the hot tables are not constraints: InnoDB would lock the channel's row for
    every insert, and Vitess and TiDB would not enforce them anyway.
    """

    class State(models.TextChoices):
        ACCEPTED = "accepted", "Acknowledged"
        DISPATCHED = "dispatched", "Out-for-delivery"
        CANCELLED = "cancelled", "Cancelled"

    id = TimeOrderedKey(primary_key=True)
    channel = models.ForeignKey(
        Channel, models.PROTECT, related_name="messages", db_constraint=False, db_index=False
    )
    producer = models.ForeignKey(
        Producer,
        models.PROTECT,
        null=True,
        related_name="messages",
        db_constraint=False,
        db_index=False,
    )
    state = models.CharField(max_length=12, choices=State.choices, default=State.ACCEPTED)
    event_type = ExactCharField(max_length=128, blank=True, default="")
    priority = models.PositiveSmallIntegerField(default=4)
    ordering_key = ExactCharField(max_length=255, blank=True, default="")
    idempotency_key = ExactCharField(max_length=255, blank=True, default="")
    content_type = models.CharField(max_length=255, blank=True, default="")
    headers = models.JSONField(default=dict, blank=True)
    """Forwarded to consumers."""
    body_bytes = models.PositiveIntegerField(default=0)
    accepted_at = models.DateTimeField()
    due_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    consumer_count = models.PositiveIntegerField(default=0)
    """Deliveries made by the fan-out."""
    version = models.PositiveIntegerField(default=1)

    class Meta:
        indexes = [
            # steps/dispatch: the few rows in state accepted, oldest first (the key ends the index)
            models.Index(fields=["state"], name="message_state"),
            # the API's and console's list of a channel, newest first; retention per channel
            models.Index(fields=["channel", "id"], name="message_channel"),
            # delivery/steps/timeline: what is going to be sent, in the order of its time
            models.Index(fields=["channel", "due_at"], name="message_timeline"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=["accepted", "dispatched", "cancelled"]),
                name="known_message_state",
            ),
            models.CheckConstraint(
                condition=models.Q(priority__lte=9), name="message_priority_range"
            ),
        ]

    def __str__(self) -> str:
        return ids.to_public(ids.MESSAGE, self.id)


class MessageBody(models.Model):
    """The exact bytes, sealed or plain (rules/encryption.py); apart, so that no list reads it."""

    message = models.OneToOneField(
        Message, models.CASCADE, primary_key=True, related_name="body", db_constraint=False
    )
    data = models.BinaryField()
    key_id = models.CharField(max_length=8, blank=True, default="")
    """Which encryption key sealed it; empty when stored plain."""

    class Meta:
        verbose_name_plural = "message bodies"

    def __str__(self) -> str:
        return f"body of {ids.to_public(ids.MESSAGE, self.message_id)}"


class IdempotencyRecord(models.Model):
    """What a producer's idempotency key already stands for, until its window closes."""

    digest = ExactCharField(primary_key=True, max_length=64)
    """SHA-256 of channel, producer and key: fixed width, whatever the key."""
    message_id = models.BigIntegerField()
    body_digest = ExactCharField(max_length=64)
    expires_at = models.DateTimeField()

    class Meta:
        # runtime/sweeps: records whose window closed
        indexes = [models.Index(fields=["expires_at"], name="idempotency_expiry")]

    def __str__(self) -> str:
        return self.digest

    @staticmethod
    def digest_of(channel_id: int, producer_id: int | None, key: str) -> str:
        """Under which a key is kept; each producer has its own keys on each channel."""
        return hashlib.sha256(f"{channel_id}:{producer_id}:{key}".encode()).hexdigest()
