"""App of the site itself: its system checks and the console's frame."""

from django.apps import AppConfig


class SiteConfig(AppConfig):
    name = "broker_site"
    verbose_name = "Site"

    def ready(self) -> None:
        # Checks register themselves when they are imported; settings are complete only now.
        from broker_site import checks  # noqa: F401
