"""Define AuditEntry: who did what to which object, when and why."""

from collections.abc import Mapping
from typing import Any, Self

from django.db import models

from channels_app import origin
from channels_app.models.base import ExactCharField


class AuditEntry(models.Model):
    """One action of a person, a key or the broker itself. Written once, never changed."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.CharField(max_length=200)
    """``user:alice``, ``key:<id>``, ``broker``, ``command``."""
    action = ExactCharField(max_length=100)
    target = ExactCharField(max_length=300)
    team_id = models.BigIntegerField(null=True, blank=True)
    """The owning team at that time. Not a foreign key: history outlives the team."""
    source = models.CharField(max_length=origin.MAX_LENGTH, blank=True, default="")
    """Interface and address of the request (channels_app/origin.py)."""
    reason = models.CharField(max_length=500, blank=True, default="")
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["target", "id"], name="audit_target"),
            models.Index(fields=["team_id", "id"], name="audit_team"),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target}"

    @classmethod
    def record(cls, actor: str, action: str, target: str, **rest: Any) -> None:
        """Save the result of ``entries`` in the caller's transaction."""
        AuditEntry.objects.bulk_create(AuditEntry.entries(actor, action, target, **rest))

    @classmethod
    def entries(
        cls,
        actor: str,
        action: str,
        target: str,
        *,
        team_id: int | None = None,
        former_team_id: int | None = None,
        reason: str = "",
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> list[Self]:
        """Build unsaved entries. With ``before`` and ``after`` only the differences are kept.

        If the object leaves a team, that team gets an entry of its own, which does not name the new
        owner.
        """
        former_entries = []
        if before and former_team_id not in (None, team_id):
            former_team = {"team": before.get("team")}
            former_entries = cls.entries(
                actor, action, target, team_id=former_team_id, reason=reason, before=former_team
            )
        if before is not None and after is not None:
            names = [name for name in after if before.get(name) != after[name]]
            before, after = ({name: side.get(name) for name in names} for side in (before, after))
        entry = cls(
            actor=actor[:200],
            action=action,
            target=target[:300],
            team_id=team_id,
            source=origin.current.get(),
            reason=reason[:500],
            before=before,
            after=after,
        )
        return [*former_entries, entry]
