"""Standing and Notice: what the owners of a consumer were told of its health."""

from django.db import models

from channels_app.models.consumer import Consumer
from delivery.rules.standing import Kind, State

STATES = [(state.value, state.value) for state in State]
KINDS = [(kind.value, kind.value.replace("_", " ")) for kind in Kind]


class Standing(models.Model):
    """What was told last of a consumer that ever failed. Changed by compare-and-set."""

    consumer = models.OneToOneField(
        Consumer, models.CASCADE, primary_key=True, related_name="standing"
    )
    state = models.CharField(max_length=10, choices=STATES, default=State.HEALTHY.value)
    since = models.DateTimeField()
    dead_since = models.DateTimeField(null=True)
    """When its owners were told of a dead letter; null when the next one is news."""
    looked_at = models.DateTimeField()
    """Dead letters up to here are known."""
    version = models.PositiveIntegerField(default=1)

    def __str__(self) -> str:
        return f"{self.consumer_id}: {self.state}"


class Notice(models.Model):
    """One change that people hear of: kept, and an outbox until the e-mail has gone out."""

    consumer = models.ForeignKey(Consumer, models.CASCADE, related_name="notices")
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
            # runtime/notices: the few that are not published, or whose e-mail is due
            models.Index(fields=["published"], name="notice_published"),
            models.Index(fields=["mail_due_at"], name="notice_mail"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_id}: {self.kind}"
