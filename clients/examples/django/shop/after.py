"""Orders that are published if they are committed, even if a process is killed."""

from django.db import transaction
from hookstation_client.django import publish_on_commit

from shop.models import Order


def place_order(room: str, number: int) -> Order:
    """Store an order and publish it."""
    with transaction.atomic():
        order = Order.objects.create(room=room, number=number)
        body = {"order": order.pk, "room": room, "number": number}
        options = {"event_type": "order.created", "ordering_key": room}
        publish_on_commit("bookings", body, **options)
    return order
