"""Orders and customers."""

from django.db import models


class Order(models.Model):
    """A booked room."""

    room = models.CharField(max_length=20)
    number = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.room} {self.number}"


class Customer(models.Model):
    """A customer who books rooms."""

    name = models.CharField(max_length=50)
    town = models.CharField(max_length=50)
    notes = models.TextField(default="")

    def __str__(self) -> str:
        return self.name
