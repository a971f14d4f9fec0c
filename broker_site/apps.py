"""App of the site itself: its system checks and the console's frame."""

from typing import Any

from django.apps import AppConfig, apps
from django.contrib import admin
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core.checks import CheckMessage, Tags, register
from django.db.models.signals import post_migrate


class ConsoleConfig(SimpleAdminConfig):
    """Django's admin, as the site's own class makes it.

    Its pages load only with the URLconf (urls.py) or for ``manage.py check``: loading them takes
    longer than everything else at a start.
    """

    default = False
    default_site = "broker_site.site.Console"

    def ready(self) -> None:
        register(check_dependencies, Tags.admin)
        register(check_console, Tags.admin)


def check_console(**kwargs: Any) -> list[CheckMessage]:
    """Django's checks of every page that the admin has."""
    admin.autodiscover()
    return list(check_admin_app(**kwargs))


class SiteConfig(AppConfig):
    name = "broker_site"
    verbose_name = "Site"

    def ready(self) -> None:
        # Checks register themselves when they are imported; settings and models are complete now.
        from broker_site import checks  # noqa: F401
        from channels_app.steps import make_roles

        # The last app that has tables: then the permissions of all are there.
        last = apps.get_app_config("delivery")
        post_migrate.connect(make_roles.ensure, sender=last, dispatch_uid="hookstation.roles")
