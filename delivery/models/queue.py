"""SQS queues (docs/sqs.md), and dead letters that are to be published to another channel."""

from django.db import models

from channels_app.models.base import ExactCharField, TimeOrderedKey, Versioned
from channels_app.models.channel import Channel
from channels_app.models.consumer import Consumer


class DeadLetter(models.Model):
    """An outbox entry: created when the delivery dies, deleted when it has been published."""

    delivery_id = models.BigIntegerField(primary_key=True)
    due_at = models.DateTimeField()
    """When to try next. A body that no key of this process decrypts is tried again later."""

    class Meta:
        # queue/dead_letters: entries to publish, oldest first
        indexes = [models.Index(fields=["due_at"], name="dead_letter_due")]

    def __str__(self) -> str:
        return str(self.delivery_id)


class Queue(Versioned):
    """One queue by its exact name, with the attributes that channel and consumer do not store."""

    name = ExactCharField(max_length=80, unique=True)
    """1 to 80 letters, digits, hyphens and underscores; the name of a FIFO queue ends in
    ``.fifo``."""
    consumer = models.OneToOneField(Consumer, models.CASCADE, related_name="sqs_queue")
    """The pull consumer through which it is received."""
    attributes = models.JSONField(default=dict, blank=True)
    """Attributes that were set, by name; others have the defaults of SQS."""
    tags = models.JSONField(default=dict, blank=True)

    def __str__(self) -> str:
        return self.name


class MoveTask(models.Model):
    """A message move task: moves messages of a dead-letter queue back or to another queue."""

    class State(models.TextChoices):
        """Names as in SQS."""

        RUNNING = "RUNNING"
        COMPLETED = "COMPLETED"
        CANCELLED = "CANCELLED"
        FAILED = "FAILED"

    id = TimeOrderedKey(primary_key=True)
    consumer = models.ForeignKey(Consumer, models.CASCADE, related_name="move_tasks")
    """The pull consumer of the dead-letter queue."""
    source_arn = models.CharField(max_length=200)
    destination_arn = models.CharField(max_length=200, blank=True, default="")
    destination = models.ForeignKey(Channel, models.CASCADE, null=True, related_name="+")
    """Null: each message goes back to the queue in which it became a dead letter."""
    max_per_second = models.PositiveIntegerField(null=True)
    state = models.CharField(max_length=10, choices=State.choices, default=State.RUNNING)
    moved_count = models.PositiveIntegerField(default=0)
    to_move_count = models.PositiveIntegerField()
    """Messages that waited when the task began."""
    failure = models.CharField(max_length=200, blank=True, default="")
    started_at = models.DateTimeField()
    """Messages accepted later are not moved."""
    next_due_at = models.DateTimeField()
    """When the next messages are moved."""

    class Meta:
        # pull/backlog: running tasks; a queue's tasks, newest first
        indexes = [
            models.Index(fields=["state", "next_due_at"], name="move_task_due"),
            models.Index(fields=["consumer", "id"], name="move_task_list"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=["RUNNING", "COMPLETED", "CANCELLED", "FAILED"]),
                name="known_move_task_state",
            )
        ]

    def __str__(self) -> str:
        return f"move task {self.id}"
