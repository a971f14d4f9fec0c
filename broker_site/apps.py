"""App of the site itself: its system checks and the console's frame."""

from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig


class ConsoleConfig(AdminConfig):
    """Django's admin, as the site's own class makes it."""

    default = False
    default_site = "broker_site.site.Console"


class SiteConfig(AppConfig):
    name = "broker_site"
    verbose_name = "Site"

    def ready(self) -> None:
        # Checks register themselves when they are imported; settings are complete only now.
        from broker_site import checks  # noqa: F401
