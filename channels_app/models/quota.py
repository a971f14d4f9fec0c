"""Quota: how much waits, and whether anything can be stored at all."""

from django.db import models

from channels_app.models.base import TimeOrderedKey
from channels_app.rules.limits import Usage


class WriteProbe(models.Model):
    """Written and removed again to find out whether anything can be (channels_app/storage.py)."""

    id = TimeOrderedKey(primary_key=True)
    data = models.BinaryField()

    def __str__(self) -> str:
        return str(self.id)


class QuotaUsage(models.Model):
    """How much waits, as last counted: in a channel, of a team's messages, or in all.

    It waits until each of its deliveries has ended (delivery/steps/quotas.py counts it).
    """

    class Scope(models.TextChoices):
        ALL = "all"
        CHANNEL = "channel"
        TEAM = "team"
        DISK = "disk"
        """Free bytes of one host, by the CRC-32 of its name; nothing waits there."""

    class Level(models.TextChoices):
        """What people were told last."""

        OK = "ok"
        NEAR = "near"
        FULL = "full"

    scope = models.CharField(max_length=8, choices=Scope.choices)
    owner_id = models.BigIntegerField(default=0)
    """Of the channel or the team; 0 for all."""
    messages = models.BigIntegerField(default=0)
    bytes = models.BigIntegerField(default=0)
    """Of their bodies as producers sent them, each counted once."""
    counted_at = models.DateTimeField()
    """When the count began: what was accepted later may be missing."""
    level = models.CharField(max_length=4, choices=Level.choices, default=Level.OK)

    class Meta:
        verbose_name_plural = "quota usage"
        constraints = [
            models.UniqueConstraint(fields=["scope", "owner_id"], name="one_quota_usage_each")
        ]

    def __str__(self) -> str:
        return f"{self.scope} {self.owner_id}: {self.messages} messages"

    @classmethod
    def of(cls, scope: str, owner_id: int) -> Usage:
        """How much of this waits, as last counted."""
        row = cls.objects.filter(scope=scope, owner_id=owner_id).first()
        return row.usage if row else Usage()

    @property
    def usage(self) -> Usage:
        """As limits take it."""
        return Usage(self.messages, self.bytes)
