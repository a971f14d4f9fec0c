"""The Django application with the outbox's tables."""

from __future__ import annotations

from django.apps import AppConfig


class HookstationConfig(AppConfig):
    """The Django application of the outbox."""

    name = "hookstation_client.django"
    label = "hookstation"
    verbose_name = "Hookstation"
    default_auto_field = "django.db.models.BigAutoField"
