"""The application, which mirrors customers to their own channel."""

from django.apps import AppConfig
from hookstation_client.django import mirror


class ShopConfig(AppConfig):
    """The shop's orders and customers."""

    name = "shop"

    def ready(self) -> None:
        """Publish every change of a customer."""
        mirror(self.get_model("Customer"), "customers", fields=["name", "town"])
