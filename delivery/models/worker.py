"""Worker: who receives as a pull consumer, so that people see in whose hands a delivery is."""

from collections.abc import Iterable
from datetime import timedelta

from django.db import models

from channels_app import clock
from channels_app.models.base import ExactCharField
from channels_app.models.consumer import Consumer
from delivery.rules.leases import MAX_WORKER_LENGTH

ABSENT_AFTER = timedelta(minutes=1)
"""A worker asks more often, even one that waits in its call as long as it may."""


class PullWorker(models.Model):
    """One program that receives for a pull consumer; leases name it by its key (S2-08)."""

    id = models.BigIntegerField(primary_key=True)
    """What `rules.leases.owner_of` makes of consumer and name: ``Delivery.lease_owner``."""
    consumer = models.ForeignKey(Consumer, models.CASCADE, related_name="workers")
    name = ExactCharField(max_length=MAX_WORKER_LENGTH)
    seen_at = models.DateTimeField()
    """When it last asked for messages, to within a few seconds."""

    keys_until = models.DateTimeField(null=True)
    """So long keys are left to it, unless it asks again; null for one that takes any (S2-66)."""

    class Meta:
        # the workers that share a consumer's keys (steps/sharing)
        indexes = [models.Index(fields=["consumer", "keys_until"], name="worker_keys")]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def absent(cls, consumer_ids: Iterable[int]) -> set[int]:
        """Those of the pull consumers for which nobody has asked for a minute."""
        wanted = set(consumer_ids)
        if not wanted:
            return wanted
        since = clock.now() - ABSENT_AFTER
        asked = cls.objects.filter(consumer_id__in=wanted, seen_at__gt=since)
        # Who has just been registered, resumed or turned into one that asks has a minute, too.
        changed = Consumer.objects.filter(id__in=wanted, updated_at__gt=since)
        return (
            wanted
            - set(asked.values_list("consumer_id", flat=True))
            - set(changed.values_list("id", flat=True))
        )
