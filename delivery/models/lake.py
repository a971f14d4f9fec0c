"""What the pipeline finds in the lake and brings back from it (docs/pipeline.md).

It writes these tables by their columns; deliveries, and messages that come back, are the broker's
own to write (steps/replay/restore).
"""

from django.db import models

from channels_app.models.base import ExactCharField


class LakeAudit(models.Model):
    """What one audit of lake and tables together came to."""

    run_id = models.BigIntegerField()
    since = models.DateTimeField(null=True)
    """Messages from then on; null: from the first."""
    until = models.DateTimeField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    message_count = models.PositiveBigIntegerField(default=0)
    delivery_count = models.PositiveBigIntegerField(default=0)
    attempt_count = models.PositiveBigIntegerField(default=0)
    gap = models.PositiveBigIntegerField(default=0)
    """Rows that do not add up; 0 is well."""
    checks = models.JSONField(default=dict)
    """The same by check (rules/lake)."""
    spans = models.JSONField(default=list)
    """Beginning of each hour or day, its messages, their deliveries."""

    def __str__(self) -> str:
        return f"until {self.until:%Y-%m-%d %H:%M}: {self.gap}"


class LakeFinding(models.Model):
    """Rows of one hour, channel and consumer that one check found to be off."""

    audit = models.ForeignKey(LakeAudit, models.CASCADE, related_name="findings")
    check_name = models.CharField(max_length=20)
    channel_id = models.BigIntegerField(default=0)
    """0: none."""
    consumer_id = models.BigIntegerField(default=0)
    hour = models.DateTimeField()
    """In which their messages were accepted."""
    count = models.PositiveBigIntegerField()
    ids = models.JSONField(default=list)
    """The first of them, as people write them."""

    def __str__(self) -> str:
        return f"{self.check_name} {self.hour:%Y-%m-%d %H:%M}: {self.count}"


class Restore(models.Model):
    """Messages on their way out of the lake to one consumer. The row stays for ever: an audit
    knows by it which second delivery of a message somebody asked for."""

    class State(models.TextChoices):
        STAGING = "staging"
        """The pipeline is bringing rows."""
        STAGED = "staged"
        """It has brought them all; the broker is not through."""
        FINISHED = "finished"
        CANCELLED = "cancelled"
        """What was not queued by then never will be."""
        REFUSED = "refused"
        """The broker cannot send them; ``error`` says why."""

    run_id = models.BigIntegerField()
    """The run that works on it, or did last."""
    consumer_id = models.BigIntegerField()
    options = models.JSONField(default=dict)
    """What was asked for; the same again goes on with what was broken off."""
    state = models.CharField(max_length=10, choices=State.choices, default=State.STAGING)
    requested_by = models.CharField(max_length=200)
    reason = models.CharField(max_length=500, blank=True, default="")
    rate_per_second = models.FloatField(null=True)
    key_ids = models.JSONField(default=list)
    """Of the encryption keys that its bodies are sealed with."""
    matched_count = models.PositiveBigIntegerField(default=0)
    staged_count = models.PositiveBigIntegerField(default=0)
    queued_count = models.PositiveBigIntegerField(default=0)
    skipped_count = models.PositiveBigIntegerField(default=0)
    """On their way without it, taken back, expired, or gone meanwhile."""
    brought_to = models.BigIntegerField(default=0)
    """Up to which message rows have been brought."""
    low = models.BigIntegerField(default=0)
    high = models.BigIntegerField(default=0)
    """First and last of its messages."""
    first_key = models.BigIntegerField(default=0)
    last_key = models.BigIntegerField(default=0)
    """First and last of the deliveries that were made for it."""
    replay_id = models.BigIntegerField(null=True)
    """The Replay that its deliveries name."""
    next_due_at = models.DateTimeField(null=True)
    """Where the next row goes on the timeline when a rate is set."""
    error = models.TextField(blank=True, default="")
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(
                    state__in=["staging", "staged", "finished", "cancelled", "refused"]
                ),
                name="known_restore_state",
            )
        ]
        # what the broker has to look at
        indexes = [models.Index(fields=["state"], name="restore_state")]

    def __str__(self) -> str:
        return f"restore {self.pk}"


class Restored(models.Model):
    """A message beside the tables, for one consumer, until the broker has let it in.

    The message's own columns; the body is there when the lake alone has it, sealed as it was.
    """

    restore = models.ForeignKey(
        Restore, models.CASCADE, related_name="rows", db_constraint=False, db_index=False
    )
    message_id = models.BigIntegerField()
    consumer_id = models.BigIntegerField()
    is_first = models.BooleanField(default=False)
    """Neither the lake nor the tables had a delivery of it for this consumer."""
    channel_id = models.BigIntegerField()
    producer_id = models.BigIntegerField(null=True)
    event_type = ExactCharField(max_length=128, blank=True, default="")
    priority = models.PositiveSmallIntegerField()
    ordering_key = ExactCharField(max_length=255, blank=True, default="")
    idempotency_key = ExactCharField(max_length=255, blank=True, default="")
    content_type = models.CharField(max_length=255, blank=True, default="")
    headers = models.JSONField(default=dict, blank=True)
    body_bytes = models.PositiveIntegerField()
    accepted_at = models.DateTimeField()
    due_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    consumer_count = models.PositiveIntegerField()
    version = models.PositiveIntegerField()
    body = models.BinaryField(null=True)
    body_key_id = models.CharField(max_length=8, blank=True, default="")

    class Meta:
        constraints = [
            # read in the order of the messages; brought twice it is refused
            models.UniqueConstraint(
                fields=["restore", "message_id", "consumer_id"], name="one_restored_each"
            )
        ]

    def __str__(self) -> str:
        return f"{self.message_id} for {self.consumer_id}"


class RestoredMessage(models.Model):
    """A message that is in the tables again and in the lake already: it is not archived twice."""

    message_id = models.BigIntegerField(primary_key=True)

    def __str__(self) -> str:
        return str(self.message_id)


class Erasure(models.Model):
    """A receipt: what was taken out of the lake for somebody, without saying who that is."""

    run_id = models.BigIntegerField()
    digest = models.CharField(max_length=64)
    """SHA-256 of what was asked for: who knows that can show that it was meant."""
    requested_by = models.CharField(max_length=200)
    reason = models.CharField(max_length=500, blank=True, default="")
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    """Null while it is under way, or when it was broken off: the same again goes on with it."""
    message_count = models.PositiveBigIntegerField(default=0)
    delivery_count = models.PositiveBigIntegerField(default=0)
    attempt_count = models.PositiveBigIntegerField(default=0)
    left_count = models.PositiveBigIntegerField(default=0)
    """Messages that the tables still have: the pipeline does not touch these."""
    files = models.JSONField(default=list)
    """Of each that was written anew: path, rows that went, SHA-256 before and after; empty after
    when nothing was left of it."""

    def __str__(self) -> str:
        return f"erasure {self.pk}"
