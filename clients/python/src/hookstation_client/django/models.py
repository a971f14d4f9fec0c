"""The outbox: messages that a committed transaction wants published."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class OutboxMessage(models.Model):
    """A message on its way to the broker; once the broker has stored it, the row is deleted."""

    id = models.BigAutoField(primary_key=True)
    """Messages of an ordering key are published in this order."""
    channel = models.CharField(max_length=100)
    idempotency_key = models.CharField(max_length=255)
    """The same at every try: the broker stores the message once."""
    body = models.BinaryField()
    content_type = models.CharField(max_length=255)
    options = models.JSONField(default=dict)
    """``event_type``, ``ordering_key``, ``priority``, ``headers``, and instants as text."""
    created_at = models.DateTimeField(auto_now_add=True)
    refused_at = models.DateTimeField(null=True)
    """When the broker refused it for good. It stays for a person, and holds up no others."""
    error = models.TextField(default="")

    objects: ClassVar[models.Manager[OutboxMessage]]

    class Meta:
        indexes = [models.Index(fields=["refused_at", "id"], name="hookstation_outbox_waiting")]
        verbose_name = "outbox message"

    def __str__(self) -> str:
        return f"{self.channel} {self.idempotency_key}"


class OutboxRelay(models.Model):
    """Who relays, and until when: one relay at a time, so that none does another one's work."""

    id = models.PositiveSmallIntegerField(primary_key=True)
    holder = models.CharField(max_length=100, default="")
    held_until = models.DateTimeField()

    objects: ClassVar[models.Manager[OutboxRelay]]

    def __str__(self) -> str:
        return f"{self.holder} until {self.held_until}"


def waiting(using: str) -> models.QuerySet[OutboxMessage]:
    """The messages that are to be published, in their order."""
    return OutboxMessage.objects.using(using).filter(refused_at=None).order_by("id")
