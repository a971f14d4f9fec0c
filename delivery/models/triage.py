"""Triage: dead letters by what went wrong, as the pipeline's last run found them."""

from django.db import models


class DeadCluster(models.Model):
    """Dead letters that ended alike at one host. Written by the pipeline's job `triage` alone."""

    class Kind(models.TextChoices):
        REPLAY = "replay", "safe to replay"
        FIX = "fix", "consumer must be mended"
        CONFIGURE = "configure", "configuration"
        BROKER = "broker", "ours"
        NEVER = "never", "do not replay"

    place = models.PositiveIntegerField(unique=True)
    """1 is the most pressing: by number, halved for each week in which it was not seen."""
    signature = models.CharField(max_length=32)
    """The same in each run; empty for the rest, which is counted together."""
    outcome = models.CharField(max_length=24, blank=True, default="")
    status_code = models.PositiveSmallIntegerField(null=True)
    host = models.CharField(max_length=255, blank=True, default="")
    shape = models.CharField(max_length=250, blank=True, default="")
    """What was answered last, without what differs."""
    dead_count = models.PositiveBigIntegerField(default=0)
    archived_count = models.PositiveBigIntegerField(default=0)
    """Of them, those in the lake alone."""
    expired_count = models.PositiveBigIntegerField(default=0)
    """Of those in the tables, those whose last instant has passed."""
    consumer_count = models.PositiveIntegerField(default=0)
    consumers = models.JSONField(default=list)
    """Of each, most first: its number, and the replay filter that takes it."""
    first_seen_at = models.DateTimeField(null=True)
    """When the first of them was given up."""
    last_seen_at = models.DateTimeField(null=True)
    began_at = models.DateTimeField(null=True)
    """Their first failed attempt."""
    sample_id = models.BigIntegerField(null=True)
    """The delivery that was given up last."""
    story = models.TextField(blank=True, default="")
    """What changed when it began."""
    kind = models.CharField(max_length=10, choices=Kind.choices, blank=True, default="")
    advice = models.TextField(blank=True, default="")
    run_id = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.outcome or 'others'} at {self.host}" if self.host else self.outcome
