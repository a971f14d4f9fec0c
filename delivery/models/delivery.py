"""Deliveries of messages to consumers, their attempts, and bulk replays."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import models
from django.db.models.functions import Length

from channels_app.core import ids
from channels_app.core.encryption import Unreadable
from channels_app.models.base import ExactCharField, TimeOrderedKey
from channels_app.models.channel import Channel
from channels_app.models.consumer import Consumer
from channels_app.models.message import Message
from channels_app.registry import data_encryption
from channels_app.registry.data_encryption import StoredResponse
from delivery.core import timing
from delivery.core.lifecycle import FINISHED, DeliveryState, shown_state
from delivery.core.ordering import BEHIND
from delivery.core.outcome import Outcome
from delivery.core.timing import Roundtrip

STATES = [state.value for state in DeliveryState]


class Replay(models.Model):
    """A bulk replay with its progress; maintenance/sweeps processes it in slices."""

    class State(models.TextChoices):
        RUNNING = "running"
        FINISHED = "finished"
        CANCELLED = "cancelled"

    id = TimeOrderedKey(primary_key=True)
    state = models.CharField(max_length=10, choices=State.choices, default=State.RUNNING)
    filter = models.JSONField()
    """Canonical filter (replay.ReplayFilter), as the API returned it."""
    consumer_ids = models.JSONField(default=list)
    """The consumers that matched when the replay was requested."""
    rate_per_second = models.FloatField(null=True)
    reason = models.CharField(max_length=500, blank=True, default="")
    requested_by = models.CharField(max_length=200)
    producer_id = models.BigIntegerField(null=True)
    team_id = models.BigIntegerField(null=True)
    """The team of the requesting key; for other tenants the replay is a 404."""
    matched_count = models.PositiveBigIntegerField(default=0)
    replayed_count = models.PositiveBigIntegerField(default=0)
    cursor = models.BigIntegerField(default=0)
    """Highest delivery id processed for the consumer at ``consumer_index``."""
    consumer_index = models.PositiveIntegerField(default=0)
    upper_id = models.BigIntegerField()
    """Deliveries created after the request are not part of it."""
    next_due_at = models.DateTimeField()
    """When the next row is due if a rate is set."""
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=["running", "finished", "cancelled"]),
                name="known_replay_state",
            )
        ]
        indexes = [
            models.Index(fields=["state"], name="replay_state"),
            # portal/views/replays: a team's own, newest first
            models.Index(fields=["team_id", "id"], name="replay_team"),
        ]

    def __str__(self) -> str:
        return ids.to_public(ids.REPLAY, self.id)

    @property
    def kind(self) -> str:
        """``backfill`` if it creates the deliveries that are missing, else ``replay``."""
        return "backfill" if self.filter.get("kind") == "missing" else "replay"

    @property
    def total_count(self) -> int:
        """Rows that matched when it was created, or those replayed if there are more."""
        return max(self.matched_count, self.replayed_count)

    @property
    def conditions(self) -> dict[str, Any]:
        """The filter as in the request."""
        return {name: value for name, value in self.filter.items() if name != "kind"}


class Delivery(models.Model):
    """One message for one consumer, with its state (S0-17). The row and its
    `Counter` change in one transaction."""

    id = TimeOrderedKey(primary_key=True)
    message = models.ForeignKey(
        Message, models.PROTECT, related_name="deliveries", db_constraint=False, db_index=False
    )
    consumer = models.ForeignKey(
        Consumer, models.PROTECT, related_name="deliveries", db_constraint=False, db_index=False
    )
    channel = models.ForeignKey(
        Channel, models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    state = models.CharField(
        max_length=12, choices=[(s, s) for s in STATES], default=DeliveryState.QUEUED.value
    )
    reason = models.CharField(max_length=20, default="accepted")
    """Why it is in this state (core/lifecycle.Reason)."""
    priority = models.PositiveSmallIntegerField(default=4)
    due_at = models.DateTimeField(null=True)
    """When it may be claimed next: its schedule, retry or lease end. Null once finished."""
    expires_at = models.DateTimeField(null=True)
    event_type = ExactCharField(max_length=128, blank=True, default="")
    ordering_key = ExactCharField(max_length=255, blank=True, default="")
    attempt_count = models.PositiveIntegerField(default=0)
    """Claims so far; the fence of every write that closes an attempt."""
    failure_count = models.PositiveIntegerField(default=0)
    """Failures since the last replay, of which the consumer's ``max_attempts`` are allowed."""
    interruption_count = models.PositiveSmallIntegerField(default=0)
    """Attempts that the broker interrupted. They are free up to a limit, so that a message that
    crashes its workers does not do so for ever."""
    lease_owner = models.BigIntegerField(null=True)
    """Generation of the pump that holds the lease (PumpSlot.generation); negative: a PullWorker's
    id."""
    outcome = models.CharField(
        max_length=24, blank=True, default="", choices=[(o.value, o.value) for o in Outcome]
    )
    status_code = models.PositiveSmallIntegerField(null=True)
    replay_id = models.BigIntegerField(null=True)
    """The replay that last queued it, so that one replay queues each row at most once."""
    accepted_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        verbose_name_plural = "deliveries"
        constraints = [
            # fan-out: creates each row once; also finds a message's deliveries
            models.UniqueConstraint(fields=["message", "consumer"], name="one_delivery_each"),
            models.CheckConstraint(
                condition=models.Q(state__in=STATES), name="known_delivery_state"
            ),
            models.CheckConstraint(
                condition=models.Q(priority__lte=9), name="delivery_priority_range"
            ),
            models.CheckConstraint(
                condition=models.Q(due_at__isnull=False)
                | models.Q(state__in=[s.value for s in DeliveryState if s in FINISHED]),
                name="open_delivery_is_due_some_time",
            ),
        ]
        indexes = [
            # queue/claim: one short range per consumer and priority level
            models.Index(fields=["consumer", "priority", "due_at"], name="delivery_claim"),
            # lists and dead letters of a consumer, newest first; release of a dead pump's rows
            models.Index(fields=["consumer", "state", "id"], name="delivery_list"),
        ]

    def __str__(self) -> str:
        return ids.to_public(ids.DELIVERY, self.id)

    @property
    def shown(self) -> str:
        """The state for people and the API (S0-17)."""
        return shown_state(DeliveryState(self.state), self.failure_count, self.attempt_count)

    @property
    def is_behind(self) -> bool:
        """Whether it waits for an earlier delivery of its ordering key (ordering/key_queue.py)."""
        return self.due_at == BEHIND

    @property
    def next_at(self) -> datetime | None:
        """When it may be claimed next; None if another delivery decides that."""
        return None if self.is_behind else self.due_at

    @property
    def next_attempt_at(self) -> datetime | None:
        """``next_at`` of a queued delivery, None in every other state."""
        return self.next_at if self.state == DeliveryState.QUEUED else None

    @property
    def held_until(self) -> datetime | None:
        """When the lease or the wait for an acknowledgement ends; None if there is neither."""
        return None if self.state == DeliveryState.QUEUED else self.due_at

    def roundtrip(self, attempts: Iterable["Attempt"]) -> Roundtrip | None:
        """Return where its time went, once delivered; ``attempts`` are its own, newest first."""
        if self.state != DeliveryState.DELIVERED.value or self.finished_at is None:
            return None
        taken = next((attempt for attempt in attempts if Outcome(attempt.outcome).is_success), None)
        if taken is None:
            return None
        return timing.of(
            self.accepted_at, taken.started_at, taken.connect_ms, taken.total_ms, self.finished_at
        )


class Attempt(models.Model):
    """One try to deliver a message: the response, how long it took, and which process made it."""

    id = TimeOrderedKey(primary_key=True)
    delivery = models.ForeignKey(
        Delivery, models.CASCADE, related_name="attempts", db_constraint=False, db_index=False
    )
    number = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    outcome = models.CharField(max_length=24, choices=[(o.value, o.value) for o in Outcome])
    status_code = models.PositiveSmallIntegerField(null=True)
    error = models.CharField(max_length=300, blank=True, default="")
    answer_headers = models.TextField(blank=True, default="")
    answer_excerpt = models.BinaryField(default=bytes)
    """If the channel encrypts bodies: the whole response in one envelope, see ``answer``."""
    connect_ms = models.PositiveIntegerField(null=True)
    first_byte_ms = models.PositiveIntegerField(null=True)
    total_ms = models.PositiveIntegerField(default=0)
    remote_address = models.CharField(max_length=64, blank=True, default="")
    worker = models.CharField(max_length=100, blank=True, default="")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["delivery", "number"], name="one_attempt_per_number")
        ]

    def __str__(self) -> str:
        return ids.to_public(ids.ATTEMPT, self.id)

    @classmethod
    def stored_bytes(cls, delivery_ids: Iterable[int]) -> dict[int, int]:
        """The bytes of the stored responses of each of these deliveries that has attempts."""
        size = models.Sum(Length("answer_excerpt") + Length("answer_headers"))
        attempts = cls.objects.filter(delivery_id__in=list(delivery_ids)).values("delivery_id")
        return dict(attempts.annotate(size=size).values_list("delivery_id", "size"))

    @property
    def answer(self) -> StoredResponse:
        """Return the decrypted response, or one whose error says why it cannot be decrypted."""
        stored = StoredResponse(self.error, self.answer_headers, bytes(self.answer_excerpt))
        try:
            return data_encryption.decrypt_response(self.delivery_id, self.number, stored)
        except Unreadable as error:
            return StoredResponse(
                f"{self.error} The answer cannot be read: {error}".strip(), "", b""
            )
