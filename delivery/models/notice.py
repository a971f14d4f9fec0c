"""Standing and Notice: what the owners of a consumer were told of its health."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self

from django.db import models
from django.db.models import F

from channels_app.models.base import ExactCharField
from channels_app.models.consumer import Consumer
from channels_app.models.team import Team
from delivery.rules.health_status import Kind, State

STATES = [(state.value, state.value) for state in State]
KINDS = [(kind.value, kind.value.replace("_", " ")) for kind in Kind]


class Standing(models.Model):
    """What was told last of a consumer that ever failed or had a hot key, by compare-and-set."""

    consumer = models.OneToOneField(
        Consumer, models.CASCADE, primary_key=True, related_name="standing"
    )
    state = models.CharField(max_length=10, choices=STATES, default=State.HEALTHY.value)
    since = models.DateTimeField()
    dead_since = models.DateTimeField(null=True)
    """When its owners were told of a dead letter; null when the next one is news."""
    looked_at = models.DateTimeField()
    """Dead letters up to here are known."""
    hot_since = models.DateTimeField(null=True)
    """When its owners were told of a hot key; null when the next one is news."""
    hot_count = models.PositiveIntegerField(default=0)
    """Its hot keys, as the last look found them."""
    hot_key = ExactCharField(max_length=255, blank=True, default="")
    """The one of them behind whose head most is waiting."""
    hot_waiting = models.PositiveIntegerField(default=0)
    """How much that is."""
    version = models.PositiveIntegerField(default=1)

    class Meta:
        # steps/hot_keys, for the overview and each scrape: the few that have one
        indexes = [models.Index(fields=["hot_count"], name="standing_hot")]

    def __str__(self) -> str:
        return f"{self.consumer_id}: {self.state}"

    @classmethod
    def of(cls, consumer: Consumer) -> Self:
        """What was told last; where nothing ever was, that it is healthy since it is there."""
        found: Self | None = getattr(consumer, "standing", None)
        if found is not None:
            return found
        begin = consumer.created_at
        return cls(consumer_id=consumer.id, state=State.HEALTHY, since=begin, looked_at=begin)

    def move(self, values: dict[str, Any]) -> bool:
        """Write what holds now; False when another process was faster.

        Raises IntegrityError where another one made this consumer's first row.
        """
        if self._state.adding:
            for name, value in values.items():
                setattr(self, name, value)
            self.save(force_insert=True)
            return True
        mine = type(self)._default_manager.filter(pk=self.pk, version=self.version)
        return bool(mine.update(**values, version=F("version") + 1))


class Notice(models.Model):
    """One change that people hear of: kept, and an outbox until the e-mail has gone out."""

    consumer = models.ForeignKey(Consumer, models.CASCADE, null=True, related_name="notices")
    """Whom it is about; null where it is about a limit."""
    team = models.ForeignKey(Team, models.CASCADE, null=True, related_name="+")
    """Whose limit it is about."""
    limit = models.CharField(max_length=120, blank=True, default="")
    """Which limit: ``channel orders``, ``team shop``, ``disk host-1``."""
    kind = models.CharField(max_length=12, choices=KINDS)
    at = models.DateTimeField()
    reason = models.CharField(max_length=300, blank=True, default="")
    message_id = models.BigIntegerField(null=True)
    """The event that was published; null where the operator has made no channel for it."""
    published = models.BooleanField(default=False)
    """Whether that has been seen to."""
    mail_due_at = models.DateTimeField(null=True)
    """When somebody may send the e-mail (again); null once it is out or given up."""
    mail_count = models.PositiveSmallIntegerField(default=0)
    """Tries so far; every write that ends one is fenced by it."""
    mailed_to = models.JSONField(default=list, blank=True)
    mail_error = models.CharField(max_length=300, blank=True, default="")

    class Meta:
        indexes = [
            # runtime/notifications: the few that are not published, or whose e-mail is due
            models.Index(fields=["published"], name="notice_published"),
            models.Index(fields=["mail_due_at"], name="notice_mail"),
        ]

    def __str__(self) -> str:
        return f"{self.limit or self.consumer_id}: {self.kind}"

    @classmethod
    def note(cls, consumer: Consumer, news: Sequence[tuple[Kind, str]], at: datetime) -> int:
        """Write what is to be told, each with a sentence; returns how many."""
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
