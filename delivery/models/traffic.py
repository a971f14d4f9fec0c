"""Traffic of each minute and hour, stored separately so that a chart reads few rows."""

from django.db import models

ALL = 0
"""The id that stands for all consumers together."""
MINUTE_S = 60
HOUR_S = 3600


class Traffic(models.Model):
    """One minute of all consumers, or one hour of all or of one (maintenance/traffic)."""

    consumer_id = models.BigIntegerField(default=ALL)
    span_s = models.PositiveSmallIntegerField()
    begins_at = models.DateTimeField()
    accepted = models.PositiveBigIntegerField(default=0)
    """Accepted messages; only for all consumers together."""
    delivered = models.PositiveBigIntegerField(default=0)
    """Successful attempts."""
    failed = models.PositiveBigIntegerField(default=0)
    """Attempts that failed and counted as failures of the consumer."""
    dead = models.PositiveBigIntegerField(default=0)
    """Deliveries that became dead letters."""
    latency = models.JSONField(default=list)
    """Deliveries by the time since their message was accepted: counts of core/timing."""

    class Meta:
        verbose_name_plural = "traffic"
        constraints = [
            # one consumer's chart
            models.UniqueConstraint(
                fields=["consumer_id", "span_s", "begins_at"], name="one_of_each_span"
            )
        ]
        # the consumers of an hour; the old rows
        indexes = [models.Index(fields=["span_s", "begins_at"], name="traffic_time")]

    def __str__(self) -> str:
        whose = "All" if self.consumer_id == ALL else f"Consumer {self.consumer_id}"
        return f"{whose}, {self.span_s} s from {self.begins_at:%Y-%m-%d %H:%M} UTC"


class TrafficMark(models.Model):
    """One row: the message and attempt up to which Traffic is complete. Lock it to update."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    message_id = models.BigIntegerField(default=0)
    attempt_id = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.message_id}, {self.attempt_id}"
