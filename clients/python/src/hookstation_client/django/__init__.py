"""A transactional outbox for Django: messages are published if their transaction commits.

Add ``"hookstation_client.django"`` to ``INSTALLED_APPS``, run ``migrate``, and keep
``manage.py relay_outbox`` running (docs/clients/django.md).
"""

from __future__ import annotations

from hookstation_client.django.mirroring import mirror
from hookstation_client.django.outbox import publish_on_commit, wake

__all__ = ["mirror", "publish_on_commit", "wake"]
