"""EarlyAck: a consumer's word that came before our own request had its answer."""

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
