"""Sequence: the numbers that a producer gives the messages of one ordering key (S2-65)."""

from django.db import models

from channels_app.models.base import ExactCharField, TimeOrderedKey
from channels_app.models.channel import Channel
from channels_app.models.producer import Producer


class Sequence(models.Model):
    """What is expected next of a producer and a key on a channel. Its row is its lock."""

    id = models.BigIntegerField(primary_key=True)
    """Channel, producer and key packed into one number (rules/sequence.py)."""
    channel = models.ForeignKey(
        Channel, models.CASCADE, related_name="+", db_constraint=False, db_index=True
    )
    producer = models.ForeignKey(
        Producer, models.PROTECT, null=True, related_name="+", db_constraint=False, db_index=False
    )
    ordering_key = ExactCharField(max_length=255)
    expected = models.BigIntegerField(default=1)
    """The number whose turn it is."""
    epoch = models.PositiveIntegerField(default=0)
    """How often it has begun anew."""
    last_message_id = models.BigIntegerField(default=0)
    skipped_count = models.BigIntegerField(default=0)
    """Numbers that it went on without."""
    skipped_from = models.BigIntegerField(null=True)
    skipped_to = models.BigIntegerField(null=True)
    skipped_at = models.DateTimeField(null=True)
    touched_at = models.DateTimeField()

    class Meta:
        # steps/sequence: those of which nothing has come for long
        indexes = [models.Index(fields=["touched_at"], name="sequence_touched")]

    def __str__(self) -> str:
        return self.ordering_key


class EarlyNumber(models.Model):
    """A message that came before its turn: a request waits, and nothing of it is stored yet."""

    id = TimeOrderedKey(primary_key=True)
    sequence_id = models.BigIntegerField()
    number = models.BigIntegerField()
    until = models.DateTimeField()
    """Then it goes on without those that are missing; a row beyond that has nobody behind it."""

    class Meta:
        constraints = [
            # steps/sequence: the lowest one that waits
            models.UniqueConstraint(fields=["sequence_id", "number"], name="one_early_number")
        ]

    def __str__(self) -> str:
        return str(self.number)
