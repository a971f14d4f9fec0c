"""Traffic: what passed in each minute and hour, kept apart so that a chart reads few rows."""

from django.db import models

ALL = 0
"""Stands for all consumers together."""
MINUTE_S = 60
HOUR_S = 3600


class Traffic(models.Model):
    """One minute of all consumers together, or one hour of them or of one (steps/traffic)."""

    consumer_id = models.BigIntegerField(default=ALL)
    span_s = models.PositiveSmallIntegerField()
    begins_at = models.DateTimeField()
    accepted = models.PositiveBigIntegerField(default=0)
    """Messages; of all together only."""
    delivered = models.PositiveBigIntegerField(default=0)
    """Attempts with which a message arrived."""
    failed = models.PositiveBigIntegerField(default=0)
    """Attempts that failed and were charged to the consumer."""
    dead = models.PositiveBigIntegerField(default=0)
    """Deliveries that were given up."""
    latency = models.JSONField(default=list)
    """Delivered ones by the time since their message was accepted: counts of rules/latency."""

    class Meta:
        verbose_name_plural = "traffic"
        constraints = [
            # one consumer's chart
            models.UniqueConstraint(
                fields=["consumer_id", "span_s", "begins_at"], name="one_of_each_span"
            )
        ]
        # the consumers of an hour; what is old
        indexes = [models.Index(fields=["span_s", "begins_at"], name="traffic_time")]

    def __str__(self) -> str:
        whose = "All" if self.consumer_id == ALL else f"Consumer {self.consumer_id}"
        return f"{whose}, {self.span_s} s from {self.begins_at:%Y-%m-%d %H:%M} UTC"


class TrafficMark(models.Model):
    """One row: up to which message and attempt all is in Traffic. Whoever locks it goes on."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    message_id = models.BigIntegerField(default=0)
    attempt_id = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.message_id}, {self.attempt_id}"
