"""Orders, and the messages that were handled."""

from django.db import models


class Order(models.Model):
    """A customer's order."""

    id = models.BigIntegerField(primary_key=True)
    article = models.CharField(max_length=100)

    def __str__(self) -> str:
        return f"{self.id} {self.article}"


class Handled(models.Model):
    """A message that was handled and must not be handled again."""

    key = models.CharField(max_length=200, unique=True)

    def __str__(self) -> str:
        return self.key
