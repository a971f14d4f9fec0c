"""Results of the pipeline's work on the lake, and rows restored from it (docs/pipeline.md).

The pipeline writes these tables by their columns. Only the broker writes deliveries and restored
messages (replay/restore).
"""

from django.db import models

from channels_app.models.base import ExactCharField


class LakeAudit(models.Model):
    """The result of one reconciliation of the lake together with the tables."""

    run_id = models.BigIntegerField()
    since = models.DateTimeField(null=True)
    """Beginning of the messages covered; null: the first message."""
    until = models.DateTimeField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    message_count = models.PositiveBigIntegerField(default=0)
    delivery_count = models.PositiveBigIntegerField(default=0)
    attempt_count = models.PositiveBigIntegerField(default=0)
    gap = models.PositiveBigIntegerField(default=0)
    """Number of mismatching rows; 0 is correct."""
    checks = models.JSONField(default=dict)
    """The same number by check (pipeline/contract/results.py)."""
    spans = models.JSONField(default=list)
    """Beginning of each hour or day, its messages and their deliveries."""

    def __str__(self) -> str:
        return f"until {self.until:%Y-%m-%d %H:%M}: {self.gap}"


class LakeFinding(models.Model):
    """Mismatching rows that one check found for an hour, channel and consumer."""

    audit = models.ForeignKey(LakeAudit, models.CASCADE, related_name="findings")
    check_name = models.CharField(max_length=20)
    channel_id = models.BigIntegerField(default=0)
    """0: none."""
    consumer_id = models.BigIntegerField(default=0)
    hour = models.DateTimeField()
    """The hour in which their messages were accepted."""
    count = models.PositiveBigIntegerField()
    ids = models.JSONField(default=list)
    """The first ids, in their public form."""

    def __str__(self) -> str:
        return f"{self.check_name} {self.hour:%Y-%m-%d %H:%M}: {self.count}"


class Restore(models.Model):
    """A restore of messages from the lake for one consumer.

    The row is never deleted: reconciliation needs it to know why a message has a second delivery.
    """

    class State(models.TextChoices):
        STAGING = "staging"
        """The pipeline is copying rows."""
        STAGED = "staged"
        """All rows are copied; the broker has not queued all of them."""
        FINISHED = "finished"
        CANCELLED = "cancelled"
        """Rows that were not queued by then stay unqueued."""
        REFUSED = "refused"
        """The broker cannot send the messages; ``error`` says why."""

    OPEN = (State.STAGING, State.STAGED)
    run_id = models.BigIntegerField()
    """The run that works on it, or did last."""
    consumer_id = models.BigIntegerField()
    options = models.JSONField(default=dict)
    """The options of the request; a request with the same options resumes an interrupted
    restore."""
    state = models.CharField(max_length=10, choices=State.choices, default=State.STAGING)
    requested_by = models.CharField(max_length=200)
    reason = models.CharField(max_length=500, blank=True, default="")
    rate_per_second = models.FloatField(null=True)
    key_ids = models.JSONField(default=list)
    """Ids of the encryption keys of its bodies."""
    matched_count = models.PositiveBigIntegerField(default=0)
    staged_count = models.PositiveBigIntegerField(default=0)
    queued_count = models.PositiveBigIntegerField(default=0)
    skipped_count = models.PositiveBigIntegerField(default=0)
    """Messages whose deliveries are open anyway, or cancelled, expired or deleted meanwhile."""
    brought_to = models.BigIntegerField(default=0)
    """Message id up to which rows have been copied."""
    low = models.BigIntegerField(default=0)
    high = models.BigIntegerField(default=0)
    """First and last message ids."""
    first_key = models.BigIntegerField(default=0)
    last_key = models.BigIntegerField(default=0)
    """First and last ids of the deliveries created for it."""
    replay_id = models.BigIntegerField(null=True)
    """The Replay that its deliveries refer to."""
    next_due_at = models.DateTimeField(null=True)
    """When the next row is due if a rate is set."""
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
        # restores that the broker has to process
        indexes = [models.Index(fields=["state"], name="restore_state")]

    def __str__(self) -> str:
        return f"restore {self.pk}"


class Restored(models.Model):
    """A message copied from the lake for one consumer, until the broker has queued it.

    It has the columns of the message. The body is stored if only the lake has it, encrypted as it
    was.
    """

    restore = models.ForeignKey(
        Restore, models.CASCADE, related_name="rows", db_constraint=False, db_index=False
    )
    message_id = models.BigIntegerField()
    consumer_id = models.BigIntegerField()
    is_first = models.BooleanField(default=False)
    """Whether neither the lake nor the tables had a delivery of it for this consumer."""
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
            # read in message order; a second copy of a row is rejected
            models.UniqueConstraint(
                fields=["restore", "message_id", "consumer_id"], name="one_restored_each"
            )
        ]

    def __str__(self) -> str:
        return f"{self.message_id} for {self.consumer_id}"


class RestoredMessage(models.Model):
    """A message that is in the lake and again in the tables, so that it is not archived twice."""

    message_id = models.BigIntegerField(primary_key=True)

    def __str__(self) -> str:
        return str(self.message_id)


class Erasure(models.Model):
    """A receipt for an erasure from the lake; it does not identify the person concerned."""

    run_id = models.BigIntegerField()
    digest = models.CharField(max_length=64)
    """SHA-256 of the request, with which its author can prove that the erasure was asked for."""
    requested_by = models.CharField(max_length=200)
    reason = models.CharField(max_length=500, blank=True, default="")
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    """Null while it runs or was interrupted; the same request resumes it."""
    message_count = models.PositiveBigIntegerField(default=0)
    delivery_count = models.PositiveBigIntegerField(default=0)
    attempt_count = models.PositiveBigIntegerField(default=0)
    left_count = models.PositiveBigIntegerField(default=0)
    """Messages still in the tables, which the pipeline does not touch."""
    files = models.JSONField(default=list)
    """For each rewritten file: path, removed rows, and SHA-256 before and after; "after" is empty
    if no row was left."""

    def __str__(self) -> str:
        return f"erasure {self.pk}"
