"""Health of consumers as last reported to their owners, and the notifications."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self

from django.db import models
from django.db.models import F

from channels_app.models.base import ExactCharField
from channels_app.models.consumer import Consumer
from channels_app.models.team import Team
from delivery.core.health_status import NotificationKind, State

STATES = [(state.value, state.value) for state in State]
KINDS = [(kind.value, kind.value.replace("_", " ")) for kind in NotificationKind]


class HealthStatus(models.Model):
    """The health last reported of a consumer that has failed or had a hot key."""

    consumer = models.OneToOneField(
        Consumer, models.CASCADE, primary_key=True, related_name="health_status"
    )
    state = models.CharField(max_length=10, choices=STATES, default=State.HEALTHY.value)
    since = models.DateTimeField()
    dead_since = models.DateTimeField(null=True)
    """When its owners were notified of a dead letter; null: the next one is reported."""
    looked_at = models.DateTimeField()
    """Dead letters up to this time have been examined."""
    hot_since = models.DateTimeField(null=True)
    """When its owners were notified of a hot key; null: the next one is reported."""
    hot_count = models.PositiveIntegerField(default=0)
    """Number of hot keys at the last scan."""
    hot_key = ExactCharField(max_length=255, blank=True, default="")
    """The hot key with the most waiting deliveries."""
    hot_waiting = models.PositiveIntegerField(default=0)
    """Number of deliveries waiting for that key."""
    version = models.PositiveIntegerField(default=1)

    class Meta:
        # ordering/hot_keys, for the overview and each scrape: the few consumers with hot keys
        indexes = [models.Index(fields=["hot_count"], name="standing_hot")]

    def __str__(self) -> str:
        return f"{self.consumer_id}: {self.state}"

    @classmethod
    def of(cls, consumer: Consumer) -> Self:
        """Return the last reported health, by default healthy since the consumer was created."""
        status: Self | None = getattr(consumer, "health_status", None)
        if status is not None:
            return status
        begin = consumer.created_at
        return cls(consumer_id=consumer.id, state=State.HEALTHY, since=begin, looked_at=begin)

    def move(self, values: dict[str, Any]) -> bool:
        """Write the current health; return False if another process was faster.

        Raises IntegrityError if another process created this consumer's first row.
        """
        if self._state.adding:
            for name, value in values.items():
                setattr(self, name, value)
            self.save(force_insert=True)
            return True
        unchanged = type(self)._default_manager.filter(pk=self.pk, version=self.version)
        return bool(unchanged.update(**values, version=F("version") + 1))


class Notification(models.Model):
    """A change to notify people of. It is kept, and is an outbox entry until the e-mail is sent."""

    consumer = models.ForeignKey(Consumer, models.CASCADE, null=True, related_name="notices")
    """The consumer concerned; null for a limit."""
    team = models.ForeignKey(Team, models.CASCADE, null=True, related_name="+")
    """The team whose limit is concerned."""
    limit = models.CharField(max_length=120, blank=True, default="")
    """The limit concerned: ``channel orders``, ``team shop``, ``disk host-1``."""
    kind = models.CharField(max_length=12, choices=KINDS)
    at = models.DateTimeField()
    reason = models.CharField(max_length=300, blank=True, default="")
    message_id = models.BigIntegerField(null=True)
    """The event that was published; null if the operator has created no channel for events."""
    published = models.BooleanField(default=False)
    """Whether publishing the event is done."""
    mail_due_at = models.DateTimeField(null=True)
    """When the e-mail may be sent (again); null once it is sent or abandoned."""
    mail_count = models.PositiveSmallIntegerField(default=0)
    """Tries so far; the fence of every write that ends one."""
    mailed_to = models.JSONField(default=list, blank=True)
    mail_error = models.CharField(max_length=300, blank=True, default="")

    class Meta:
        indexes = [
            # health/notifications: the few to publish, or whose e-mail is due
            models.Index(fields=["published"], name="notice_published"),
            models.Index(fields=["mail_due_at"], name="notice_mail"),
        ]

    def __str__(self) -> str:
        return f"{self.limit or self.consumer_id}: {self.kind}"

    @classmethod
    def note(
        cls, consumer: Consumer, news: Sequence[tuple[NotificationKind, str]], at: datetime
    ) -> int:
        """Create a notification for each kind and its text; return how many."""
        rows = cls._default_manager.bulk_create(
            cls(
                consumer_id=consumer.id,
                kind=kind.value,
                at=at,
                reason=reason[:300],
                mail_due_at=at if consumer.team_id else None,
            )
            for kind, reason in news
        )
        return len(rows)
