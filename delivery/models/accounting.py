"""AccountingReport and Pruned: what audits of the books found, and what they cannot expect to find.

The audit trail, which says what people did, is another thing: channels_app's AuditEntry.
"""

from collections.abc import Mapping

from django.db import models

ALL = (1 << 63) - 1
"""Above every message."""
EVERY_CHANNEL = 0
"""The number of none."""


class AccountingReport(models.Model):
    """What one audit that the broker ran by itself came to (runtime/reconciler)."""

    class Span(models.TextChoices):
        RECENT = "recent", "Recent"
        """The last hours."""
        EVERYTHING = "everything", "Everything"

    span = models.CharField(max_length=10, choices=Span.choices)
    since = models.DateTimeField(null=True)
    """Messages from then on; null: from the first."""
    until = models.DateTimeField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    message_count = models.PositiveBigIntegerField(default=0)
    delivery_count = models.PositiveBigIntegerField(default=0)
    states = models.JSONField(default=dict)
    """Deliveries by state."""
    gap = models.PositiveBigIntegerField(default=0)
    """Rows that do not add up; 0 is well."""
    checks = models.JSONField(default=dict)
    """The same by check (rules/reconciliation.Check)."""
    findings = models.JSONField(default=list)
    """The first of them, with channel, consumer, number and some ids."""

    class Meta:
        # the newest of each span; what is old
        indexes = [models.Index(fields=["span", "finished_at"], name="report_newest")]

    def __str__(self) -> str:
        return f"{self.span} until {self.until:%Y-%m-%d %H:%M}: {self.gap}"


class Pruned(models.Model):
    """Up to which message of a channel deliveries may be gone by right (steps/retention).

    Under ``EVERY_CHANNEL``: up to which message messages themselves may be gone. Of those that are
    nobody knows the channel any more.
    """

    channel_id = models.BigIntegerField(primary_key=True)
    message_id = models.BigIntegerField(default=0)
    """Never falls, also when retention is made longer later; ``ALL`` while the channel is being
    deleted (steps/erase)."""

    class Meta:
        verbose_name_plural = "pruned"

    def __str__(self) -> str:
        return f"{self.channel_id}: {self.message_id}"

    @classmethod
    def note(cls, channel_id: int, message_id: int) -> None:
        """To be called, and committed, no later than the deletion of what it excuses."""
        mark, _ = cls.objects.get_or_create(
            channel_id=channel_id, defaults={"message_id": message_id}
        )
        if mark.message_id < message_id:
            cls.objects.filter(channel_id=channel_id, message_id__lt=message_id).update(
                message_id=message_id
            )

    @classmethod
    def note_each(cls, marks: Mapping[int, int]) -> None:
        """The same for several channels, message by channel, in few statements."""
        rows = cls.objects.select_for_update().filter(channel_id__in=marks).order_by("channel_id")
        found = {row.channel_id: row for row in rows}
        for channel_id in sorted(marks.keys() - found.keys()):
            cls.note(channel_id, marks[channel_id])
        higher = [row for key, row in found.items() if row.message_id < marks[key]]
        for row in higher:
            row.message_id = marks[row.channel_id]
        cls.objects.bulk_update(higher, ["message_id"])

    @classmethod
    def is_all(cls, channel_id: int) -> bool:
        """Whether the channel is being deleted."""
        return cls.objects.filter(channel_id=channel_id, message_id=ALL).exists()
