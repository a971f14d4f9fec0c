"""Team: the people who own producers and consumers together."""

from django.conf import settings
from django.db import models

from channels_app.models.base import ExactCharField, Limited, Versioned


class Team(Limited, Versioned):
    """A tenant: what one team owns is a 404 for another."""

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
    """A link into a team: whoever holds it may join, once, until it ends or is taken back."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="invitations")
    role = models.CharField(
        max_length=10, choices=Membership.Role.choices, default=Membership.Role.VIEWER
    )
    digest = ExactCharField(max_length=64, unique=True)
    """SHA-256 of the link's secret, which is shown once and stored nowhere."""
    email = models.EmailField(blank=True, default="")
    """Whom it was meant for, to tell invitations apart; it binds nobody."""
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
