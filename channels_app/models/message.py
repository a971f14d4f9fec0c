"""Define Message, with its body, its sequence number and its idempotency key."""

import hashlib
from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models import Exists, OuterRef, Q, QuerySet

from channels_app.core import ids
from channels_app.models.base import ExactCharField, TimeOrderedKey
from channels_app.models.channel import Channel
from channels_app.models.producer import Producer

_OPEN = Q(due_at__isnull=False)
"""Deliveries that have not ended; ended ones have no ``due_at`` (delivery/models/delivery.py)."""


class Sequence(models.Model):
    """State of a producer's sequence for one ordering key on a channel.

    Its row serves as the lock.
    """

    id = models.BigIntegerField(primary_key=True)
    """Hash of channel, producer and ordering key (core/sequence.py)."""
    channel = models.ForeignKey(
        Channel, models.CASCADE, related_name="+", db_constraint=False, db_index=True
    )
    producer = models.ForeignKey(
        Producer, models.PROTECT, null=True, related_name="+", db_constraint=False, db_index=False
    )
    ordering_key = ExactCharField(max_length=255)
    expected = models.BigIntegerField(default=1)
    """The number expected next."""
    epoch = models.PositiveIntegerField(default=0)
    """How many times the sequence has been restarted."""
    last_message_id = models.BigIntegerField(default=0)
    skipped_count = models.BigIntegerField(default=0)
    """How many numbers were skipped."""
    skipped_from = models.BigIntegerField(null=True)
    skipped_to = models.BigIntegerField(null=True)
    skipped_at = models.DateTimeField(null=True)
    touched_at = models.DateTimeField()

    class Meta:
        # ingest/sequence: idle sequences
        indexes = [models.Index(fields=["touched_at"], name="sequence_touched")]

    def __str__(self) -> str:
        return self.ordering_key


class PendingSequenceNumber(models.Model):
    """A message that arrived before lower numbers: its request waits, and it is not stored yet."""

    id = TimeOrderedKey(primary_key=True)
    sequence_id = models.BigIntegerField()
    number = models.BigIntegerField()
    until = models.DateTimeField()
    """When it is stored without the missing ones; an older row belongs to no request."""

    class Meta:
        constraints = [
            # ingest/sequence: the lowest number that waits
            models.UniqueConstraint(fields=["sequence_id", "number"], name="one_early_number")
        ]

    def __str__(self) -> str:
        return str(self.number)


class Message(models.Model):
    """One accepted message (S0-14, S0-16).

    Foreign keys of the hot tables are not constraints: InnoDB would lock the channel's row for
    every insert, and Vitess and TiDB would not enforce them anyway.
    """

    class State(models.TextChoices):
        """The stored state. People and the API see ``Message.shown``."""

        ACCEPTED = "accepted"
        DISPATCHED = "dispatched"
        CANCELLED = "cancelled"

    class Shown(models.TextChoices):
        """The state that people and the API see, from the stored one and the deliveries."""

        ACKNOWLEDGED = "Acknowledged"
        OUT_FOR_DELIVERY = "Out-for-delivery"
        """At least one delivery has not ended: it is queued, in flight or not acknowledged."""
        FINISHED = "Finished"
        """All deliveries have ended, or no consumer wanted the message."""
        CANCELLED = "Cancelled"

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
    """Forwarded to consumers: an object, or an encrypted string
    (data_encryption.decrypt_headers)."""
    body_bytes = models.PositiveIntegerField(default=0)
    accepted_at = models.DateTimeField()
    due_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    consumer_count = models.PositiveIntegerField(default=0)
    """Number of deliveries that the fan-out created."""
    version = models.PositiveIntegerField(default=1)

    class Meta:
        indexes = [
            # lists, counts and reconciliation of a state, oldest first (the id ends the index)
            models.Index(fields=["state"], name="message_state"),
            # delivery's fan-out: the few rows in state accepted, by priority and age
            models.Index(fields=["state", "priority"], name="message_priority"),
            # the API's and console's list of a channel, newest first; retention per channel
            models.Index(fields=["channel", "id"], name="message_channel"),
            # delivery/queue/timeline: messages to be sent, ordered by time
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
        permissions = [("open_sensitive_message", "Can open messages of sensitive channels")]

    def __str__(self) -> str:
        return ids.to_public(ids.MESSAGE, self.id)

    @classmethod
    def with_open(cls, rows: "QuerySet[Message]") -> "QuerySet[Message]":
        """Annotate the rows for ``shown``, which otherwise queries once per row."""
        return rows.annotate(has_open=_has_open())

    @property
    def shown(self) -> Shown:
        """The state for people and the API. A replay or a backfill reopens a finished message.

        Derived instead of stored, so that the end of an attempt does not write the message's row.
        """
        if self.state == self.State.DISPATCHED:
            has_open = self.__dict__.get("has_open")
            if has_open is None:
                has_open = self.deliveries.filter(_OPEN).exists()
            return self.Shown.OUT_FOR_DELIVERY if has_open else self.Shown.FINISHED
        is_new = self.state == self.State.ACCEPTED
        return self.Shown.ACKNOWLEDGED if is_new else self.Shown.CANCELLED

    def is_scheduled(self, now: datetime) -> bool:
        """Whether it is due later."""
        ended = (self.Shown.FINISHED, self.Shown.CANCELLED)
        return self.due_at > now and self.shown not in ended

    @classmethod
    def in_state(cls, shown: Shown) -> Q:
        """The condition for messages with this ``shown``."""
        if shown is cls.Shown.ACKNOWLEDGED:
            return Q(state=cls.State.ACCEPTED)
        if shown is cls.Shown.CANCELLED:
            return Q(state=cls.State.CANCELLED)
        is_open = Q(_has_open())
        wanted = is_open if shown is cls.Shown.OUT_FOR_DELIVERY else ~is_open
        return Q(state=cls.State.DISPATCHED) & wanted

    @classmethod
    def scheduled(cls, now: datetime) -> Q:
        """The condition for messages with ``is_scheduled``."""
        open_ones = Q(state=cls.State.ACCEPTED) | cls.in_state(cls.Shown.OUT_FOR_DELIVERY)
        return Q(due_at__gt=now) & open_ones


class MessageBody(models.Model):
    """The body as core/encryption.py stores it, in a table of its own, so that lists stay fast."""

    message = models.OneToOneField(
        Message, models.CASCADE, primary_key=True, related_name="body", db_constraint=False
    )
    data = models.BinaryField()
    key_id = models.CharField(max_length=8, blank=True, default="")
    """Id of the encryption key that protects it; empty in rows from before digests existed."""

    class Meta:
        verbose_name_plural = "message bodies"

    def __str__(self) -> str:
        return f"body of {ids.to_public(ids.MESSAGE, self.message_id)}"


class IdempotencyRecord(models.Model):
    """The message of an idempotency key, until the key's window ends."""

    SHARED: ClassVar = "*"
    """The owner of keys that all producers of a channel share."""

    digest = ExactCharField(primary_key=True, max_length=64)
    """SHA-256 of channel, owner and key: always the same length."""
    message_id = models.BigIntegerField()
    body_digest = ExactCharField(max_length=64)
    expires_at = models.DateTimeField()

    class Meta:
        # maintenance/sweeps: expired records
        indexes = [models.Index(fields=["expires_at"], name="idempotency_expiry")]

    def __str__(self) -> str:
        return self.digest

    @staticmethod
    def digest_of(channel_id: int, owner: int | str | None, key: str) -> str:
        """The digest under which a key is stored. ``owner`` is the producer's id, or `SHARED`."""
        return hashlib.sha256(f"{channel_id}:{owner}:{key}".encode()).hexdigest()


def _has_open() -> Exists:
    deliveries = Message._meta.get_field("deliveries").related_model
    return Exists(deliveries._default_manager.filter(_OPEN, message=OuterRef("pk")))
