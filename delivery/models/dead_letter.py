"""DeadLetter: a death whose message is still to be published on another channel."""

from django.db import models


class DeadLetter(models.Model):
    """An outbox: written with the death, deleted with the publication."""

    delivery_id = models.BigIntegerField(primary_key=True)
    due_at = models.DateTimeField()
    """Not before this instant: a body that no key here opens is tried again later."""

    class Meta:
        # runtime/dead_letters: what is to be published, oldest first
        indexes = [models.Index(fields=["due_at"], name="dead_letter_due")]

    def __str__(self) -> str:
        return str(self.delivery_id)
