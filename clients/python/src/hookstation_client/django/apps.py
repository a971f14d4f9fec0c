"""The application of the outbox's tables."""

from __future__ import annotations

from django.apps import AppConfig


class HookstationConfig(AppConfig):
    """The outbox."""

    name = "hookstation_client.django"
    label = "hookstation"
    verbose_name = "Hookstation"
    default_auto_field = "django.db.models.BigAutoField"
