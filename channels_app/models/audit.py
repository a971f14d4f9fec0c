"""AuditEntry: who did what to which object, when and why."""

from django.db import models

from channels_app.models.base import ExactCharField


class AuditEntry(models.Model):
    """One action of a person, a key or the broker itself. Written once, never changed."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.CharField(max_length=200)
    """``user:alice``, ``key:<id>``, ``broker``, ``command``."""
    action = ExactCharField(max_length=100)
    target = ExactCharField(max_length=300)
    reason = models.CharField(max_length=500, blank=True, default="")
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["target", "id"], name="audit_target")]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target}"
