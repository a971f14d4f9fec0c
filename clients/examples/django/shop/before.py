"""Orders that are published after their commit: a kill in between loses the message."""

from django.db import transaction
from hookstation_client import Hookstation

from shop.models import Order


def place_order(room: str, number: int) -> Order:
    """Store an order and publish it."""
    with transaction.atomic():
        order = Order.objects.create(room=room, number=number)
        body = {"order": order.pk, "room": room, "number": number}
        options = {"event_type": "order.created", "ordering_key": room}
        transaction.on_commit(lambda: Hookstation().publish("bookings", body, **options))
    return order
