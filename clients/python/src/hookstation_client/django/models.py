"""The outbox: messages of committed transactions that are to be published."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class OutboxMessage(models.Model):
    """A message that is to be published. The relay deletes it once the broker has stored it."""

    id = models.BigAutoField(primary_key=True)
    """Messages of an ordering key are published in this order."""
    channel = models.CharField(max_length=100)
    idempotency_key = models.CharField(max_length=255)
    """The same in every try, so that the broker stores the message once."""
    body = models.BinaryField()
    content_type = models.CharField(max_length=255)
    options = models.JSONField(default=dict)
    """``event_type``, ``ordering_key``, ``priority``, ``headers``, and instants as text."""
    created_at = models.DateTimeField(auto_now_add=True)
    refused_at = models.DateTimeField(null=True)
    """When the broker refused it finally. The row is kept for inspection and blocks no others."""
    error = models.TextField(default="")

    objects: ClassVar[models.Manager[OutboxMessage]]

    class Meta:
        indexes = [models.Index(fields=["refused_at", "id"], name="hookstation_outbox_waiting")]
        verbose_name = "outbox message"

    def __str__(self) -> str:
        return f"{self.channel} {self.idempotency_key}"


class OutboxRelay(models.Model):
    """The lease of the active relay. One relay at a time saves duplicate work."""

    id = models.PositiveSmallIntegerField(primary_key=True)
    holder = models.CharField(max_length=100, default="")
    held_until = models.DateTimeField()

    objects: ClassVar[models.Manager[OutboxRelay]]

    def __str__(self) -> str:
        return f"{self.holder} until {self.held_until}"


def waiting(using: str) -> models.QuerySet[OutboxMessage]:
    """Return the messages that are to be published, in order."""
    return OutboxMessage.objects.using(using).filter(refused_at=None).order_by("id")
