"""Reports of the pipeline: usage and health by day, triage of dead letters, and the forecast.

The jobs `usage`, `health`, `triage` and `forecast` write them (docs/pipeline.md); the console
displays them.
"""

from django.db import models

from channels_app.models.base import ExactCharField

NONE = 0
"""The id that stands for no consumer or no producer."""
ALL = 0
"""The id that stands for all channels together."""
HOUR_S, MINUTE_S = 3600, 60


class UsageHour(models.Model):
    """One hour of a channel, producer and consumer; consumer 0 has the accepted messages."""

    hour = models.DateTimeField()
    channel_id = models.BigIntegerField()
    producer_id = models.BigIntegerField()
    """Producer of the messages; 0 if it is no longer known."""
    consumer_id = models.BigIntegerField()
    messages = models.PositiveBigIntegerField(default=0)
    """Messages accepted in that hour; set, as ``bytes``, only under consumer 0."""
    bytes = models.PositiveBigIntegerField(default=0)
    """Bytes of their bodies."""
    delivered = models.PositiveBigIntegerField(default=0)
    """Deliveries that ended as delivered in that hour; the next two count other ends."""
    dead = models.PositiveBigIntegerField(default=0)
    cancelled = models.PositiveBigIntegerField(default=0)
    attempts = models.PositiveBigIntegerField(default=0)
    """Attempts begun in that hour."""
    failed_attempts = models.PositiveBigIntegerField(default=0)
    """Failed ones of these, without those that the broker interrupted."""
    bytes_out = models.PositiveBigIntegerField(default=0)
    """Bytes of the bodies that were delivered."""

    class Meta:
        constraints = [
            # a window's rows are replaced; a month's rows are summed
            models.UniqueConstraint(
                fields=["hour", "channel_id", "producer_id", "consumer_id"], name="one_usage_each"
            )
        ]

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H:%M}, {self.channel_id}/{self.producer_id}"


class LatencyHour(models.Model):
    """An hour's successful attempts of a consumer in one latency bucket (core/histogram)."""

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
    """One day (UTC) of a consumer, or under consumer 0 of all consumers of a host."""

    day = models.DateField()
    consumer_id = models.BigIntegerField()
    host = ExactCharField(max_length=255, blank=True, default="")
    attempts = models.PositiveBigIntegerField(default=0)
    """Attempts without those that the broker interrupted."""
    failed = models.PositiveBigIntegerField(default=0)
    retries = models.PositiveBigIntegerField(default=0)
    unreachable = models.PositiveBigIntegerField(default=0)
    """Failed attempts that did not reach the consumer."""
    p50_ms = models.FloatField(null=True)
    """Median duration of successful attempts; accurate to a fifth."""
    p95_ms = models.FloatField(null=True)
    p99_ms = models.FloatField(null=True)
    recoveries = models.PositiveBigIntegerField(default=0)
    """Series of failures that a success ended."""
    recovery_median_s = models.FloatField(null=True)
    """Median time from the first failure of a series to the success that ended it."""
    recovery_longest_s = models.FloatField(null=True)
    outage_s = models.FloatField(default=0)
    """Seconds in series of three failures and more."""
    down_since = models.DateTimeField(null=True)
    """The first failure of such a series that lasted beyond the day."""
    score = models.PositiveSmallIntegerField(null=True)
    """0 to 100; null if there was no attempt."""
    reason = models.CharField(max_length=300)
    objective = models.FloatField()
    """Percentage of attempts that should not fail."""
    budget_used = models.FloatField(null=True)
    """Share of the failures allowed in the seven days up to this one that was used; 1 is all."""
    burn_1h = models.FloatField(null=True)
    """How many times faster than allowed attempts failed in the day's last hour; the next three
    are for its last 6 and 24 hours and the whole day."""
    burn_6h = models.FloatField(null=True)
    burn_24h = models.FloatField(null=True)
    burn_day = models.FloatField(null=True)
    week_before = models.JSONField(default=dict)
    """The 7 days before, by column name."""

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
    """Dead letters that ended alike at one host. Written only by the pipeline's job `triage`."""

    class Kind(models.TextChoices):
        REPLAY = "replay", "safe to replay"
        FIX = "fix", "consumer must be mended"
        CONFIGURE = "configure", "configuration"
        BROKER = "broker", "ours"
        NEVER = "never", "do not replay"

    place = models.PositiveIntegerField(unique=True)
    """Rank, 1 being the most urgent: by count, halved for each week without a new dead letter."""
    signature = models.CharField(max_length=32)
    """Equal in each run; empty for the remaining dead letters, which are counted together."""
    outcome = models.CharField(max_length=24, blank=True, default="")
    status_code = models.PositiveSmallIntegerField(null=True)
    host = models.CharField(max_length=255, blank=True, default="")
    shape = models.CharField(max_length=250, blank=True, default="")
    """The last response, without the parts that vary."""
    dead_count = models.PositiveBigIntegerField(default=0)
    archived_count = models.PositiveBigIntegerField(default=0)
    """Those of the dead letters that are only in the lake."""
    expired_count = models.PositiveBigIntegerField(default=0)
    """Those in the tables whose messages have expired."""
    consumer_count = models.PositiveIntegerField(default=0)
    consumers = models.JSONField(default=list)
    """For each consumer, most dead letters first: the number, and a replay filter that selects
    them."""
    first_seen_at = models.DateTimeField(null=True)
    """When the first of them died."""
    last_seen_at = models.DateTimeField(null=True)
    began_at = models.DateTimeField(null=True)
    """Time of their first failed attempt."""
    sample_id = models.BigIntegerField(null=True)
    """The delivery that died last."""
    story = models.TextField(blank=True, default="")
    """What changed at that time."""
    kind = models.CharField(max_length=10, choices=Kind.choices, blank=True, default="")
    advice = models.TextField(blank=True, default="")
    run_id = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.outcome or 'others'} at {self.host}" if self.host else self.outcome


class ForecastFrame(models.Model):
    """A future hour of one or all channels, or a hot minute. Written by the job `forecast`."""

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
    """To the consumers that are active now, including retries."""
    bytes = models.FloatField(default=0.0)
    """Bytes of bodies, counted once for each delivery."""
    scheduled = models.FloatField(default=0.0)
    """Those of the messages that are already scheduled."""
    retries = models.FloatField(default=0.0)
    """Those of the deliveries that failed before and wait for their next attempt."""
    low = models.FloatField(default=0.0)
    high = models.FloatField(default=0.0)
    """Messages as in the quietest and in the busiest of the past weeks."""
    samples = models.PositiveSmallIntegerField(default=0)
    basis = models.CharField(max_length=8, choices=Basis.choices, default=Basis.NOTHING)
    per_second = models.FloatField(default=0.0)
    """Deliveries per second in its busiest minute."""
    workers = models.PositiveIntegerField(default=1)
    """Pumps needed for that rate."""
    is_hot = models.BooleanField(default=False)
    """Whether it has far more traffic than usual."""
    run_id = models.BigIntegerField()

    class Meta:
        constraints = [
            # the strip of one or all channels
            models.UniqueConstraint(
                fields=["channel_id", "span_s", "begins_at"], name="one_frame_of_each_span"
            )
        ]

    def __str__(self) -> str:
        whose = "All" if self.channel_id == ALL else f"Channel {self.channel_id}"
        return f"{whose}, {self.span_s} s from {self.begins_at:%Y-%m-%d %H:%M} UTC"
