"""SigningKey: what signs leases and acknowledgement addresses, and tells which key seals."""

from django.db import models

from channels_app.models.base import ExactCharField


class SigningKey(models.Model):
    """A random key, sealed by an encryption key; the newest one's encryption key is what seals now.

    So each row is a canary, too: a process whose keys do not open the newest one has others than
    the installation. `keystore` reads and writes them.
    """

    id = models.PositiveIntegerField(primary_key=True)
    """1, 2, 3, ...: of two processes that make the same one the second fails."""
    sealed = models.BinaryField()
    key_id = ExactCharField(max_length=8)
    """Fingerprint of the encryption key that sealed it."""
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.pk}, sealed with {self.key_id}"
