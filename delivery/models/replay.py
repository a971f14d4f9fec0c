"""Replay: a request to send again every delivery that matches a filter."""

from django.db import models

from channels_app.models.base import TimeOrderedKey
from channels_app.rules import ids


class Replay(models.Model):
    """A bulk replay with its progress; runtime/sweeps works it off slice by slice."""

    class State(models.TextChoices):
        RUNNING = "running"
        FINISHED = "finished"
        CANCELLED = "cancelled"

    id = TimeOrderedKey(primary_key=True)
    state = models.CharField(max_length=10, choices=State.choices, default=State.RUNNING)
    filter = models.JSONField()
    """Canonical filter (steps/replay.ReplayFilter) that the API answered with."""
    consumer_ids = models.JSONField(default=list)
    """The consumers it resolved to when it was asked for."""
    rate_per_second = models.FloatField(null=True)
    reason = models.CharField(max_length=500, blank=True, default="")
    requested_by = models.CharField(max_length=200)
    producer_id = models.BigIntegerField(null=True)
    team_id = models.BigIntegerField(null=True)
    """Whose key asked: another tenant's replay is a 404."""
    matched_count = models.PositiveBigIntegerField(default=0)
    replayed_count = models.PositiveBigIntegerField(default=0)
    cursor = models.BigIntegerField(default=0)
    """Highest delivery id looked at within the consumer at ``consumer_index``."""
    consumer_index = models.PositiveIntegerField(default=0)
    upper_id = models.BigIntegerField()
    """Deliveries made after the request are not part of it."""
    next_due_at = models.DateTimeField()
    """Where the next row goes on the timeline when a rate is set."""
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=["running", "finished", "cancelled"]),
                name="known_replay_state",
            )
        ]
        indexes = [
            models.Index(fields=["state"], name="replay_state"),
            # ui/views/replays: a team's own, newest first
            models.Index(fields=["team_id", "id"], name="replay_team"),
        ]

    def __str__(self) -> str:
        return ids.to_public(ids.REPLAY, self.id)
