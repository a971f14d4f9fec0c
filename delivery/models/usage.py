"""UsageHour, LatencyHour and HealthDay: what the pipeline counted, for bills and for judgement.

Its jobs `usage` and `health` write them (docs/pipeline.md); the console reads.
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
    """How many attempts of an hour and consumer arrived within which time (rules/histogram)."""

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
