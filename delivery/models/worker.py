"""Worker: who receives as a pull consumer, so that people see in whose hands a delivery is."""

from django.db import models

from channels_app.models.base import ExactCharField
from channels_app.models.consumer import Consumer
from delivery.rules.leases import LONGEST_WORKER


class PullWorker(models.Model):
    """One program that receives for a pull consumer; leases name it by its key (S2-08)."""

    id = models.BigIntegerField(primary_key=True)
    """What `rules.leases.owner_of` makes of consumer and name: ``Delivery.lease_owner``."""
    consumer = models.ForeignKey(Consumer, models.CASCADE, related_name="workers")
    name = ExactCharField(max_length=LONGEST_WORKER)
    seen_at = models.DateTimeField()
    """When it last received something, to within a few seconds."""

    keys_until = models.DateTimeField(null=True)
    """So long keys are left to it, unless it asks again; null for one that takes any (S2-66)."""

    class Meta:
        # the workers that share a consumer's keys (steps/sharing)
        indexes = [models.Index(fields=["consumer", "keys_until"], name="worker_keys")]

    def __str__(self) -> str:
        return self.name
