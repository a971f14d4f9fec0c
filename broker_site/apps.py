"""Define the apps of the site: its system checks, and the admin."""

from typing import Any

from django.apps import AppConfig, apps
from django.contrib import admin
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core.checks import CheckMessage, Tags, register
from django.db.models.signals import post_migrate


class ConsoleConfig(SimpleAdminConfig):
    """Django's admin with the site's own AdminSite.

    Its pages are imported only with the URLconf (urls.py) or for ``manage.py check``, since that
    takes longer than the rest of a start.
    """

    default = False
    default_site = "broker_site.console.site.Console"

    def ready(self) -> None:
        register(check_dependencies, Tags.admin)
        register(check_console, Tags.admin)


def check_console(**kwargs: Any) -> list[CheckMessage]:
    """Run Django's checks of all admin pages."""
    admin.autodiscover()
    return list(check_admin_app(**kwargs))


class SiteConfig(AppConfig):
    name = "broker_site"
    verbose_name = "Site"

    def ready(self) -> None:
        # Importing the module registers the checks; settings and models are complete now.
        from broker_site.observability import checks  # noqa: F401
        from channels_app.registry import roles

        # The last app with tables: after it, all permissions exist.
        last = apps.get_app_config("delivery")
        post_migrate.connect(roles.ensure, sender=last, dispatch_uid="hookstation.roles")
