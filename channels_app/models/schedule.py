"""Define Schedule, a message that is published repeatedly, by the clock (S4-06)."""

from typing import Any

from django.db import models

from channels_app.core.recurrence import MAX_CRON_LENGTH, MAX_ZONE_LENGTH, Timetable
from channels_app.models.base import ExactCharField, Versioned
from channels_app.models.channel import Channel
from channels_app.models.producer import Producer
from channels_app.models.team import Team


class Schedule(Versioned):
    """A recurring message. Its version changes with its settings, not when it fires."""

    class State(models.TextChoices):
        ACTIVE = "active"
        PAUSED = "paused"
        """By a person; occurrences during the pause are skipped."""
        ENDED = "ended"
        """No further occurrence, or it has reached its limit."""

    class Misfire(models.TextChoices):
        FIRE_ONCE = "fire_once", "publish the last of them"
        FIRE_ALL = "fire_all", "publish all of them"
        SKIP = "skip", "publish none of them"

    class Overlap(models.TextChoices):
        ALLOW = "allow", "publish all the same"
        SKIP_IF_UNDELIVERED = "skip_if_undelivered", "leave the occurrence out"

    channel = models.ForeignKey(Channel, models.CASCADE, related_name="schedules")
    name = ExactCharField(max_length=100)
    producer = models.ForeignKey(
        Producer, models.PROTECT, null=True, blank=True, related_name="schedules"
    )
    """The producer of its messages."""
    team = models.ForeignKey(Team, models.PROTECT, null=True, blank=True, related_name="schedules")
    """Owner if there is no producer: the team of the key that created it."""
    description = models.TextField(blank=True, default="")
    cron = ExactCharField(max_length=MAX_CRON_LENGTH, blank=True, default="")
    every_ms = models.PositiveBigIntegerField(null=True, blank=True)
    timezone = ExactCharField(max_length=MAX_ZONE_LENGTH, default="UTC")
    start_at = models.DateTimeField(null=True, blank=True)
    end_at = models.DateTimeField(null=True, blank=True)
    limit = models.PositiveIntegerField(null=True, blank=True)
    """Maximum number of messages; runs by hand do not count."""
    misfire = models.CharField(max_length=10, choices=Misfire.choices, default=Misfire.FIRE_ONCE)
    overlap = models.CharField(max_length=20, choices=Overlap.choices, default=Overlap.ALLOW)
    content_type = models.CharField(max_length=255, blank=True, default="")
    event_type = ExactCharField(max_length=128, blank=True, default="")
    priority = models.PositiveSmallIntegerField(null=True, blank=True)
    """None: the producer's default."""
    ordering_key = ExactCharField(max_length=255, blank=True, default="")
    headers = models.JSONField(default=dict, blank=True)
    body_bytes = models.PositiveIntegerField(default=0, editable=False)
    state = models.CharField(max_length=10, choices=State.choices, default=State.ACTIVE)
    next_at = models.DateTimeField(null=True, editable=False)
    """The next occurrence to check; null unless active."""
    fired_count = models.PositiveBigIntegerField(default=0, editable=False)
    skipped_count = models.PositiveBigIntegerField(default=0, editable=False)
    """Occurrences without a message: missed, overlapping or refused."""
    last_message_id = models.BigIntegerField(null=True, editable=False)
    recent = models.JSONField(default=list, editable=False)
    """Results of the last occurrences, newest first (core/recurrence.py)."""

    @property
    def last(self) -> dict[str, Any] | None:
        """The newest result; None before the first."""
        return self.recent[0] if self.recent else None

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["channel", "name"], name="one_schedule_per_name"),
            models.CheckConstraint(
                condition=models.Q(state__in=["active", "paused", "ended"]),
                name="known_schedule_state",
            ),
            models.CheckConstraint(
                condition=models.Q(misfire__in=["fire_once", "fire_all", "skip"]),
                name="known_misfire",
            ),
            models.CheckConstraint(
                condition=models.Q(overlap__in=["allow", "skip_if_undelivered"]),
                name="known_overlap",
            ),
        ]
        indexes = [
            # delivery/maintenance/recurring: due schedules, and the next due time
            models.Index(fields=["next_at"], name="schedule_next"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def timetable(self) -> Timetable:
        """When it recurs."""
        return Timetable(
            cron=self.cron,
            every_ms=self.every_ms,
            zone=self.timezone,
            anchor=self.created_at,
            start_at=self.start_at,
            end_at=self.end_at,
        )

    @property
    def owner_team_id(self) -> int | None:
        """Id of the team that owns it."""
        return self.producer.team_id if self.producer else self.team_id


class ScheduleBody(models.Model):
    """The body that it publishes, stored like those of messages; apart, so that lists stay fast."""

    schedule = models.OneToOneField(Schedule, models.CASCADE, primary_key=True, related_name="body")
    data = models.BinaryField()
    key_id = models.CharField(max_length=8, blank=True, default="")
    """Id of the encryption key that protects it; empty in rows from before digests existed."""

    class Meta:
        verbose_name_plural = "schedule bodies"

    def __str__(self) -> str:
        return f"body of schedule {self.schedule_id}"
