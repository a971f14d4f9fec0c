"""Reports of the pipeline: usage and health by day, triage of dead letters, and the forecast.

The jobs `usage`, `health`, `triage` and `forecast` write them (docs/pipeline.md); the console
reads them.
"""

from django.db import models

from channels_app.models.base import ExactCharField

NONE = 0
"""The number of no consumer, and of no producer."""


class UsageHour(models.Model):
    """One hour of one channel, producer and consumer; under consumer 0 what was accepted."""

    hour = models.DateTimeField()
    channel_id = models.BigIntegerField()
    producer_id = models.BigIntegerField()
    """Of the messages; 0 where it is not known any more."""
    consumer_id = models.BigIntegerField()
    messages = models.PositiveBigIntegerField(default=0)
    """Accepted in that hour; under consumer 0 only, and the next one too."""
    bytes = models.PositiveBigIntegerField(default=0)
    """Of their bodies."""
    delivered = models.PositiveBigIntegerField(default=0)
    """Deliveries that ended so in that hour, and the next two."""
    dead = models.PositiveBigIntegerField(default=0)
    cancelled = models.PositiveBigIntegerField(default=0)
    attempts = models.PositiveBigIntegerField(default=0)
    """Begun in that hour."""
    failed_attempts = models.PositiveBigIntegerField(default=0)
    """Of them; those that the broker broke off itself are not among these."""
    bytes_out = models.PositiveBigIntegerField(default=0)
    """Bodies of those that arrived."""

    class Meta:
        constraints = [
            # a window's rows are replaced; a month's are added up
            models.UniqueConstraint(
                fields=["hour", "channel_id", "producer_id", "consumer_id"], name="one_usage_each"
            )
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H:%M}, {self.channel_id}/{self.producer_id}"


class LatencyHour(models.Model):
    """How many attempts of an hour and consumer arrived within which time (rules/health)."""

    hour = models.DateTimeField()
    consumer_id = models.BigIntegerField()
    bucket = models.SmallIntegerField()
    count = models.PositiveBigIntegerField()

    class Meta:
        constraints = [
            # as for usage
            models.UniqueConstraint(
                fields=["hour", "consumer_id", "bucket"], name="one_latency_each"
            )
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H:%M}, {self.consumer_id}: {self.bucket}"


class HealthDay(models.Model):
    """One day, UTC, of a consumer, or under consumer 0 of all consumers of a host."""

    day = models.DateField()
    consumer_id = models.BigIntegerField()
    host = ExactCharField(max_length=255, blank=True, default="")
    attempts = models.PositiveBigIntegerField(default=0)
    """Without those that the broker broke off itself."""
    failed = models.PositiveBigIntegerField(default=0)
    retries = models.PositiveBigIntegerField(default=0)
    unreachable = models.PositiveBigIntegerField(default=0)
    """Failed ones that reached nobody."""
    p50_ms = models.FloatField(null=True)
    """Of attempts that arrived; right to a fifth."""
    p95_ms = models.FloatField(null=True)
    p99_ms = models.FloatField(null=True)
    recoveries = models.PositiveBigIntegerField(default=0)
    """Runs of failures that a success ended."""
    recovery_median_s = models.FloatField(null=True)
    """From the first failure of a run to the success that ended it."""
    recovery_longest_s = models.FloatField(null=True)
    outage_s = models.FloatField(default=0)
    """In runs of three failures and more."""
    down_since = models.DateTimeField(null=True)
    """The first failure of such a run that had not ended with the day."""
    score = models.PositiveSmallIntegerField(null=True)
    """0 to 100; null where nothing was tried."""
    reason = models.CharField(max_length=300)
    objective = models.FloatField()
    """Percent of attempts that shall not fail."""
    budget_used = models.FloatField(null=True)
    """Of what may fail in the seven days that end with this one; 1 is all of it."""
    burn_1h = models.FloatField(null=True)
    """How much faster than allowed attempts failed in the last hour of the day, and so on."""
    burn_6h = models.FloatField(null=True)
    burn_24h = models.FloatField(null=True)
    burn_day = models.FloatField(null=True)
    week_before = models.JSONField(default=dict)
    """The 7 days before by the names of columns."""

    class Meta:
        constraints = [
            # a day's rows are replaced and listed
            models.UniqueConstraint(fields=["day", "consumer_id", "host"], name="one_health_each")
        ]
        # the last days of some consumers
        indexes = [models.Index(fields=["consumer_id", "day"], name="health_of_consumer")]

    def __str__(self) -> str:
        return f"{self.day}, {self.consumer_id or self.host}: {self.score}"


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


ALL = 0
"""Stands for all channels together."""
HOUR_S, MINUTE_S = 3600, 60


class ForecastFrame(models.Model):
    """An hour to come of a channel or of all, or a hot minute. Written by the job `forecast`."""

    class Basis(models.TextChoices):
        WEEKS = "weeks", "the same hour of past weeks"
        DAYS = "days", "the same hour of past days"
        MEAN = "mean", "the mean of all hours"
        NOTHING = "nothing", "what is scheduled"

    channel_id = models.BigIntegerField(default=ALL)
    span_s = models.PositiveSmallIntegerField(default=HOUR_S)
    begins_at = models.DateTimeField()
    messages = models.FloatField(default=0.0)
    deliveries = models.FloatField(default=0.0)
    """To the consumers that are active now, retries included."""
    bytes = models.FloatField(default=0.0)
    """Of bodies, once for each delivery."""
    scheduled = models.FloatField(default=0.0)
    """Messages of them that are known already."""
    retries = models.FloatField(default=0.0)
    """Deliveries of them that failed before and wait for their next attempt."""
    low = models.FloatField(default=0.0)
    high = models.FloatField(default=0.0)
    """Messages, if it becomes like the quietest or the busiest of the weeks before."""
    samples = models.PositiveSmallIntegerField(default=0)
    basis = models.CharField(max_length=8, choices=Basis.choices, default=Basis.NOTHING)
    per_second = models.FloatField(default=0.0)
    """Deliveries in its busiest minute."""
    workers = models.PositiveIntegerField(default=1)
    """Pumps that deliver so many."""
    is_hot = models.BooleanField(default=False)
    """Far more than is usual."""
    run_id = models.BigIntegerField()

    class Meta:
        constraints = [
            # the strip of all or of one channel
            models.UniqueConstraint(
                fields=["channel_id", "span_s", "begins_at"], name="one_frame_of_each_span"
            )
        ]

    def __str__(self) -> str:
        whose = "All" if self.channel_id == ALL else f"Channel {self.channel_id}"
        return f"{whose}, {self.span_s} s from {self.begins_at:%Y-%m-%d %H:%M} UTC"
