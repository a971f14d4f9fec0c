"""Ordering keys of consumers, and acknowledgements that came before their time.

Lane: one key of an ordered consumer, with its head that may go and those behind it. EarlyAck and
Correlation: acknowledgements that came early, and the ids that providers give.
"""

from django.db import models

from channels_app.models.base import ExactCharField
from channels_app.models.consumer import Consumer


class Lane(models.Model):
    """There while something of its key is open, or while a person holds it (S3-09, S3-24).

    Its row is its lock: only who holds it changes what stands in the lane (delivery/lanes.py).
    """

    id = models.BigIntegerField(primary_key=True)
    """Consumer and key packed into one number (rules/lanes.py)."""
    consumer = models.ForeignKey(
        Consumer, models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    ordering_key = ExactCharField(max_length=255)
    head_id = models.BigIntegerField(null=True)
    """The delivery that may go; null where the key is paused and nothing is on its way."""
    head_at = models.DateTimeField()
    """Since when it is the head."""
    head_place = models.BigIntegerField(default=0)
    """What stood up to here is gone: the search for the next one begins behind it."""
    last_place = models.BigIntegerField(default=0)
    waiting_count = models.IntegerField(default=0)
    """Deliveries behind the head."""
    paused_at = models.DateTimeField(null=True)
    """Since when a person holds it; null while it flows."""
    blocked_at = models.DateTimeField(null=True)
    """Since when its head is dead at a consumer whose keys stand still then."""

    class Meta:
        # lists of a consumer's lanes, those that stand longest first; steps/lanes at its end
        indexes = [models.Index(fields=["consumer", "head_at"], name="lane_of_consumer")]

    def __str__(self) -> str:
        return self.ordering_key


class LaneWaiter(models.Model):
    """A delivery behind its lane's head. Its own ``due_at`` is kept here until its turn."""

    delivery_id = models.BigIntegerField(primary_key=True)
    lane_id = models.BigIntegerField()
    place = models.BigIntegerField()
    due_at = models.DateTimeField()

    class Meta:
        constraints = [
            # the next one of a lane
            models.UniqueConstraint(fields=["lane_id", "place"], name="one_waiter_per_place")
        ]

    def __str__(self) -> str:
        return f"{self.lane_id}/{self.place}"


class EarlyAck(models.Model):
    """Kept until the attempt is recorded, which then follows it (steps/settle)."""

    delivery_id = models.BigIntegerField(primary_key=True)
    ok = models.BooleanField()
    said_at = models.DateTimeField()

    class Meta:
        # steps/acknowledge: those that nothing followed
        indexes = [models.Index(fields=["said_at"], name="early_ack_age")]

    def __str__(self) -> str:
        return "ok" if self.ok else "failed"


class Correlation(models.Model):
    """An id that a consumer's provider gave to one delivery, or a word about one not known yet."""

    id = models.BigIntegerField(primary_key=True)
    """Consumer and the provider's id packed into one number (rules/correlation.py)."""
    delivery_id = models.BigIntegerField(null=True)
    """Null while the answer that names it has not been recorded."""
    ok = models.BooleanField(null=True)
    """What was said before that; null where nothing was."""
    noted_at = models.DateTimeField()

    class Meta:
        # steps/correlate: those that nobody calls back about any more
        indexes = [models.Index(fields=["noted_at"], name="correlation_age")]

    def __str__(self) -> str:
        return f"{self.id:x}"
