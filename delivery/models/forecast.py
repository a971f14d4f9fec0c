"""Forecast: the load of the coming hours, as the pipeline's last run estimated it."""

from django.db import models

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
