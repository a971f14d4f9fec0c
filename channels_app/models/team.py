"""Define Team, its members and invitations, and QuotaUsage, the count of waiting messages."""

from django.conf import settings
from django.db import models

from channels_app.core.rate_limits import Usage
from channels_app.models.base import ExactCharField, Limited, TimeOrderedKey, Versioned


class WriteProbe(models.Model):
    """Rows written and deleted as a test whether writing works (channels_app/ingest/storage.py)."""

    id = TimeOrderedKey(primary_key=True)
    data = models.BinaryField()

    def __str__(self) -> str:
        return str(self.id)


class QuotaUsage(models.Model):
    """Waiting messages at the last count: of a channel, of a team, or of all.

    A message waits until each of its deliveries has ended. delivery/maintenance/quota_usage.py
    counts.
    """

    class Scope(models.TextChoices):
        ALL = "all"
        CHANNEL = "channel"
        TEAM = "team"
        DISK = "disk"
        """Free bytes on the disk of one host; ``owner_id`` is the CRC-32 of its name."""

    class Level(models.TextChoices):
        """The level of the last notification."""

        OK = "ok"
        NEAR = "near"
        FULL = "full"

    scope = models.CharField(max_length=8, choices=Scope.choices)
    owner_id = models.BigIntegerField(default=0)
    """Id of the channel or team; 0 for all."""
    messages = models.BigIntegerField(default=0)
    bytes = models.BigIntegerField(default=0)
    """Size of the bodies as published, each counted once."""
    counted_at = models.DateTimeField()
    """When the count began; messages accepted later may be missing."""
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
        """The last count for this owner."""
        row = cls.objects.filter(scope=scope, owner_id=owner_id).first()
        return row.usage if row else Usage()

    @property
    def usage(self) -> Usage:
        """The count as limits take it."""
        return Usage(self.messages, self.bytes)


class Team(Limited, Versioned):
    """A tenant: objects of one team are a 404 for another."""

    slug = ExactCharField(max_length=100, unique=True)
    name = models.CharField(max_length=200)

    def __str__(self) -> str:
        return self.slug


class Membership(models.Model):
    """A person's role in a team."""

    class Role(models.TextChoices):
        OWNER = "owner"
        EDITOR = "editor"
        VIEWER = "viewer"

    team = models.ForeignKey(Team, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.VIEWER)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "user"], name="one_role_per_person"),
            models.CheckConstraint(
                condition=models.Q(role__in=["owner", "editor", "viewer"]), name="known_role"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.team}"


class Invitation(models.Model):
    """A link into a team: its holder may join once, until it expires or is revoked."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="invitations")
    role = models.CharField(
        max_length=10, choices=Membership.Role.choices, default=Membership.Role.VIEWER
    )
    digest = ExactCharField(max_length=64, unique=True)
    """SHA-256 of the link's secret, which is shown once and not stored."""
    email = models.EmailField(blank=True, default="")
    """The invited address, to tell invitations apart; others may use the link, too."""
    invited_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(role__in=["owner", "editor", "viewer"]),
                name="known_invited_role",
            )
        ]

    def __str__(self) -> str:
        return f"{self.team.slug}/{self.pk}"
