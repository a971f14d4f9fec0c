"""Reports of reconciliation, and marks of deleted rows that it must not expect.

The audit trail of people's actions is in channels_app's AuditEntry.
"""

from collections.abc import Mapping

from django.db import models

ALL = (1 << 63) - 1
"""Greater than every message id."""
EVERY_CHANNEL = 0
"""The number of no channel."""


class ReconciliationReport(models.Model):
    """The result of one automatic reconciliation (maintenance/reconciliations)."""

    class Span(models.TextChoices):
        RECENT = "recent", "Recent"
        """The last hours."""
        EVERYTHING = "everything", "Everything"

    span = models.CharField(max_length=10, choices=Span.choices)
    since = models.DateTimeField(null=True)
    """Beginning of the messages covered; null: the first message."""
    until = models.DateTimeField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    message_count = models.PositiveBigIntegerField(default=0)
    delivery_count = models.PositiveBigIntegerField(default=0)
    states = models.JSONField(default=dict)
    """Deliveries by state."""
    gap = models.PositiveBigIntegerField(default=0)
    """Number of mismatching rows; 0 is correct."""
    checks = models.JSONField(default=dict)
    """The same number by check (core/reconciliation.Check)."""
    findings = models.JSONField(default=list)
    """The first findings, each with channel, consumer, count and some ids."""

    class Meta:
        # the newest of each span; the old ones
        indexes = [models.Index(fields=["span", "finished_at"], name="report_newest")]

    def __str__(self) -> str:
        return f"{self.span} until {self.until:%Y-%m-%d %H:%M}: {self.gap}"


class RetentionMark(models.Model):
    """The message up to which a channel's deliveries may have been deleted (maintenance/retention).

    The row for ``EVERY_CHANNEL`` is the id up to which messages themselves may be deleted: a
    deleted message's channel is no longer known.
    """

    channel_id = models.BigIntegerField(primary_key=True)
    message_id = models.BigIntegerField(default=0)
    """Never decreases, even if retention is extended later; ``ALL`` while the channel is being
    deleted (maintenance/channel_erasure)."""

    class Meta:
        verbose_name_plural = "pruned"

    def __str__(self) -> str:
        return f"{self.channel_id}: {self.message_id}"

    @classmethod
    def note(cls, channel_id: int, message_id: int) -> None:
        """Raise the mark. Call and commit this no later than the deletion that it covers."""
        mark, _ = cls.objects.get_or_create(
            channel_id=channel_id, defaults={"message_id": message_id}
        )
        if mark.message_id < message_id:
            cls.objects.filter(channel_id=channel_id, message_id__lt=message_id).update(
                message_id=message_id
            )

    @classmethod
    def note_each(cls, marks: Mapping[int, int]) -> None:
        """Raise the marks of several channels in few statements."""
        rows = cls.objects.select_for_update().filter(channel_id__in=marks).order_by("channel_id")
        by_channel = {row.channel_id: row for row in rows}
        for channel_id in sorted(marks.keys() - by_channel.keys()):
            cls.note(channel_id, marks[channel_id])
        higher = [row for key, row in by_channel.items() if row.message_id < marks[key]]
        for row in higher:
            row.message_id = marks[row.channel_id]
        cls.objects.bulk_update(higher, ["message_id"])

    @classmethod
    def is_all(cls, channel_id: int) -> bool:
        """Whether the channel is being deleted."""
        return cls.objects.filter(channel_id=channel_id, message_id=ALL).exists()
