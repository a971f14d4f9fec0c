"""Create or change the tables."""

from typing import Any

from django.core.checks import Tags
from django.core.management.commands import migrate

from channels_app.conf import INSTALLATION


class Command(migrate.Command):
    """Django's command without the checks of URLs, which load console, portal and API."""

    def check(self, *args: Any, **options: Any) -> None:
        """Check what tables depend on."""
        super().check(*args, **{**options, "tags": [INSTALLATION, Tags.models, Tags.database]})
