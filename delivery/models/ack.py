"""EarlyAck and Correlation: words that came early, and the names that providers give."""

from django.db import models


class EarlyAck(models.Model):
    """Kept until the attempt is recorded, which then follows it (steps/settle)."""

    delivery_id = models.BigIntegerField(primary_key=True)
    ok = models.BooleanField()
    said_at = models.DateTimeField()

    class Meta:
        # steps/acknowledge: those that nothing followed
        indexes = [models.Index(fields=["said_at"], name="early_ack_age")]

    def __str__(self) -> str:
        return "ok" if self.ok else "failed"


class Correlation(models.Model):
    """An id that a consumer's provider gave to one delivery, or a word about one not known yet."""

    id = models.BigIntegerField(primary_key=True)
    """Consumer and the provider's id packed into one number (rules/correlation.py)."""
    delivery_id = models.BigIntegerField(null=True)
    """Null while the answer that names it has not been recorded."""
    ok = models.BooleanField(null=True)
    """What was said before that; null where nothing was."""
    noted_at = models.DateTimeField()

    class Meta:
        # steps/correlate: those that nobody calls back about any more
        indexes = [models.Index(fields=["noted_at"], name="correlation_age")]

    def __str__(self) -> str:
        return f"{self.id:x}"
