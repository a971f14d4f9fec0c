"""Running processes: pumps and other registered ones, pull workers, consumers' health, sweeps."""

from collections.abc import Collection, Iterable
from datetime import timedelta

from django.db import models

from channels_app.database import clock
from channels_app.models.base import ExactCharField
from channels_app.models.consumer import Consumer
from delivery.core.leases import MAX_WORKER_LENGTH

ABSENT_AFTER = timedelta(minutes=1)
"""Longer than the longest long poll: a live worker asks more often."""


class PullWorker(models.Model):
    """One program that receives for a pull consumer; leases name it by its id (S2-08)."""

    id = models.BigIntegerField(primary_key=True)
    """Computed from consumer and name by `core.leases.owner_of`; used as
    ``Delivery.lease_owner``."""
    consumer = models.ForeignKey(Consumer, models.CASCADE, related_name="workers")
    name = ExactCharField(max_length=MAX_WORKER_LENGTH)
    seen_at = models.DateTimeField()
    """When it last asked for messages, accurate to a few seconds."""

    keys_until = models.DateTimeField(null=True)
    """Until when ordering keys are reserved for it, extended when it asks; null for a worker that
    takes any key (S2-66)."""

    class Meta:
        # the workers that share a consumer's keys (pull/key_affinity)
        indexes = [models.Index(fields=["consumer", "keys_until"], name="worker_keys")]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def absent(cls, consumer_ids: Iterable[int]) -> set[int]:
        """Return the pull consumers whose workers have not asked for a minute."""
        wanted = set(consumer_ids)
        if not wanted:
            return wanted
        since = clock.now() - ABSENT_AFTER
        asked = cls.objects.filter(consumer_id__in=wanted, seen_at__gt=since)
        # A consumer just registered, resumed or changed to pulling gets a minute, too.
        changed = Consumer.objects.filter(id__in=wanted, updated_at__gt=since)
        return (
            wanted
            - set(asked.values_list("consumer_id", flat=True))
            - set(changed.values_list("id", flat=True))
        )


class PumpSlot(models.Model):
    """A slot for one long-running process, owned by the process that sends its heartbeat."""

    class Kind(models.TextChoices):
        PUMP = "pump"
        """Delivers messages."""
        MAINTENANCE = "maintenance"
        """Runs sweeps and replays."""
        WEB = "web"
        """A web process, which accepts messages; it has a cluster of its own."""

    cluster = ExactCharField(max_length=36)
    """One start of a worker cluster; two clusters on one database share no slots."""
    kind = models.CharField(max_length=12, choices=Kind.choices, default=Kind.PUMP)
    ordinal = models.PositiveSmallIntegerField()
    generation = models.BigIntegerField(unique=True)
    """Changes with each owner; a pump that finds another value has been replaced and stops."""
    host = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    wake_address = models.CharField(max_length=100, blank=True, default="")
    """``host:port`` of its datagram socket."""
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()
    in_flight = models.PositiveIntegerField(default=0)
    key_ids = models.TextField(blank=True, default="")
    """Fingerprints of the encryption keys that the owner has read, separated by commas."""
    missing_key_ids = models.TextField(blank=True, default="")
    """Fingerprints of keys that it lacks and has needed for decryption."""
    followed = models.BigIntegerField(default=0)
    """Configuration version (ConfigVersion) up to which its owner has applied changes."""
    clock_offset_ms = models.BigIntegerField(default=0, db_default=0)
    """Milliseconds by which its host's clock is ahead of the database's."""

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "kind", "ordinal"], name="one_pump_per_place"
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.ordinal} on {self.host} ({self.pid})"


class ConsumerHealth(models.Model):
    """A consumer's circuit, and since when the consumer fails."""

    class Circuit(models.TextChoices):
        CLOSED = "closed"
        OPEN = "open"

    consumer = models.OneToOneField(
        Consumer, models.CASCADE, primary_key=True, related_name="health"
    )
    circuit = models.CharField(max_length=10, choices=Circuit.choices, default=Circuit.CLOSED)
    consecutive_failures = models.PositiveIntegerField(default=0)
    opened_count = models.PositiveIntegerField(default=0)
    next_probe_at = models.DateTimeField(null=True)
    slow_until = models.DateTimeField(null=True)
    failing_since = models.DateTimeField(null=True)
    last_success_at = models.DateTimeField(null=True)
    last_failure_at = models.DateTimeField(null=True)
    last_outcome = models.CharField(max_length=24, blank=True, default="")

    class Meta:
        verbose_name_plural = "consumer health"
        constraints = [
            models.CheckConstraint(
                condition=models.Q(circuit__in=["closed", "open"]),
                name="known_circuit",
            )
        ]

    def __str__(self) -> str:
        return f"{self.consumer_id}: {self.circuit}"

    @classmethod
    def resting(cls, consumer_ids: Collection[int]) -> set[int]:
        """Return consumers whose circuit is open and whose next probe is not due."""
        rows = cls.objects.filter(consumer_id__in=list(consumer_ids), circuit=cls.Circuit.OPEN)
        resting = rows.filter(next_probe_at__gt=clock.now())
        return set(resting.values_list("consumer_id", flat=True))


class SweepRun(models.Model):
    """When a sweep runs next; the process that moves ``next_at`` forward runs it."""

    name = ExactCharField(max_length=50, primary_key=True)
    next_at = models.DateTimeField()
    last_started_at = models.DateTimeField(null=True)
    last_duration_ms = models.PositiveIntegerField(null=True)
    last_count = models.PositiveIntegerField(default=0)
    """Rows that the last run repaired, moved or deleted."""
    last_error = models.CharField(max_length=500, blank=True, default="")

    def __str__(self) -> str:
        return self.name
