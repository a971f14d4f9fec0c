"""Schedule: a message that is published again and again, by the clock (S4-06)."""

from django.db import models

from channels_app.models.base import ExactCharField, Versioned
from channels_app.models.channel import Channel
from channels_app.models.producer import Producer
from channels_app.models.team import Team
from channels_app.rules.timetable import MAX_CRON_LENGTH, MAX_ZONE_LENGTH, Timetable


class Schedule(Versioned):
    """A recurring message. Its version is that of its settings; firing leaves it alone."""

    class State(models.TextChoices):
        ACTIVE = "active"
        PAUSED = "paused"
        """By a person: what would have happened meanwhile does not."""
        ENDED = "ended"
        """There is no further occurrence, or it has fired as often as it should."""

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
    """Whose messages they are."""
    team = models.ForeignKey(Team, models.PROTECT, null=True, blank=True, related_name="schedules")
    """Whose it is without a producer: that of the key that made it."""
    description = models.TextField(blank=True, default="")
    cron = ExactCharField(max_length=MAX_CRON_LENGTH, blank=True, default="")
    every_ms = models.PositiveBigIntegerField(null=True, blank=True)
    timezone = ExactCharField(max_length=MAX_ZONE_LENGTH, default="UTC")
    start_at = models.DateTimeField(null=True, blank=True)
    end_at = models.DateTimeField(null=True, blank=True)
    limit = models.PositiveIntegerField(null=True, blank=True)
    """Messages in its whole life; what people run by hand does not count."""
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
    """The occurrence to be looked at next; null unless active."""
    fired_count = models.PositiveBigIntegerField(default=0, editable=False)
    skipped_count = models.PositiveBigIntegerField(default=0, editable=False)
    """Occurrences without a message: missed, overlapping or refused."""
    last_message_id = models.BigIntegerField(null=True, editable=False)
    recent = models.JSONField(default=list, editable=False)
    """What became of the last occurrences, newest first (rules/occurrence_log.py)."""

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
            # delivery/steps/occurrences: what is due, and when the next one is
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
        """The tenant it belongs to."""
        return self.producer.team_id if self.producer else self.team_id


class ScheduleBody(models.Model):
    """The exact bytes that it publishes, sealed or plain as those of messages; no list reads it."""

    schedule = models.OneToOneField(Schedule, models.CASCADE, primary_key=True, related_name="body")
    data = models.BinaryField()
    key_id = models.CharField(max_length=8, blank=True, default="")
    """Which encryption key protects it; empty in rows that are older than digests."""

    class Meta:
        verbose_name_plural = "schedule bodies"

    def __str__(self) -> str:
        return f"body of schedule {self.schedule_id}"
