"""App of deliveries: how accepted messages get to their consumers."""

from django.apps import AppConfig


class DeliveryConfig(AppConfig):
    name = "delivery"
    verbose_name = "Delivery"
