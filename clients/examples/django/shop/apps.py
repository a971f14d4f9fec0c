"""The application; customers are mirrored to a channel of theirs."""

from django.apps import AppConfig
from hookstation_client.django import mirror


class ShopConfig(AppConfig):
    """Orders and customers."""

    name = "shop"

    def ready(self) -> None:
        """Publish what happens to customers."""
        mirror(self.get_model("Customer"), "customers", fields=["name", "town"])
