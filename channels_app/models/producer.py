"""Define Producer, the API keys of producers and teams, and the keys that sign tokens."""

from django.db import models

from channels_app.models.base import ExactCharField, Versioned
from channels_app.models.team import Team


class SigningKey(models.Model):
    """A random signing key, encrypted; the newest row's encryption key is the current one.

    So the newest row also shows whether a process has the right keys: one that cannot decrypt it
    lacks the installation's current key. `registry.data_encryption` reads and writes the rows.
    """

    id = models.PositiveIntegerField(primary_key=True)
    """1, 2, 3, ...: if two processes create the same one, the second insert fails."""
    sealed = models.BinaryField()
    key_id = ExactCharField(max_length=8)
    """Id of the encryption key used."""
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.pk}, sealed with {self.key_id}"


class Producer(Versioned):
    """A system that generates messages (S0-11)."""

    slug = ExactCharField(max_length=100, unique=True)
    description = models.TextField(blank=True, default="")
    team = models.ForeignKey(Team, models.PROTECT, null=True, blank=True, related_name="producers")
    default_priority = models.PositiveSmallIntegerField(default=4)
    max_priority = models.PositiveSmallIntegerField(default=9)
    """Higher priorities are rejected, so that a batch job cannot delay urgent ones (S0-41,
    S0-51)."""
    rate_per_second = models.FloatField(null=True, blank=True)
    rate_burst = models.PositiveIntegerField(default=100)
    disabled = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(default_priority__lte=9, max_priority__lte=9),
                name="producer_priority_range",
            )
        ]

    def __str__(self) -> str:
        return self.slug


class ProducerRate(models.Model):
    """State of the rate limiter, exact across processes; only producers with a limit have a row."""

    producer = models.OneToOneField(Producer, models.CASCADE, primary_key=True)
    arrival_at = models.FloatField(default=0.0)
    """Theoretical arrival time (GCRA), Unix seconds."""

    def __str__(self) -> str:
        return f"{self.producer_id}: {self.arrival_at}"


class ApiKey(Versioned):
    """A bearer key, shown once and stored as a digest, with scopes, channels and expiry."""

    key_id = ExactCharField(max_length=32, unique=True)
    digest = ExactCharField(max_length=64)
    """SHA-256 of the 256-bit random secret; a slower hash is unnecessary at that entropy."""
    sigv4_sealed = models.BinaryField(default=bytes, blank=True)
    """The secret access key for AWS Signature Version 4, encrypted (data_encryption.encrypt_sigv4);
    empty for a key without one."""
    label = models.CharField(max_length=200, blank=True, default="")
    producer = models.ForeignKey(
        Producer, models.CASCADE, null=True, blank=True, related_name="keys"
    )
    team = models.ForeignKey(Team, models.CASCADE, null=True, blank=True, related_name="keys")
    scopes = models.JSONField(default=list)
    channels = models.JSONField(default=list, blank=True)
    """Names of the channels it may use; empty means all, or for a team's key the external ones."""
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "API key"
        constraints = [
            models.CheckConstraint(
                condition=models.Q(producer__isnull=True) | models.Q(team__isnull=True),
                name="key_of_producer_or_team",
            )
        ]

    def __str__(self) -> str:
        return f"hsk_{self.key_id}_..."

    @property
    def has_sigv4(self) -> bool:
        """Whether clients may sign requests with it (AWS Signature Version 4)."""
        return bool(self.sigv4_sealed)

    @property
    def reaches_all(self) -> bool:
        """Whether it may use every channel."""
        return "admin" in self.scopes or (not self.channels and self.team_id is None)
