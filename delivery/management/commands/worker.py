"""Provide ``manage.py worker``, which runs the delivery cluster without a supervisor."""

import uuid
from typing import Any

from django.core.management.base import CommandParser

from delivery.cluster import qcluster
from delivery.management.base import Command as BaseCommand
from delivery.management.base import refuse_wrong_keys

run = qcluster.run


class Command(BaseCommand):
    """Runs pumps, sweeps and schedules until SIGTERM."""

    help = (
        "Run the delivery workers in the foreground. Usually `manage.py broker` starts them, and "
        "restarts them when they die or hang. Use this command under your own process manager, "
        "which must signal only the main process."
    )
    examples = "  manage.py worker"

    def add_arguments(self, parser: CommandParser) -> None:
        """Add ``--cluster``."""
        parser.add_argument(
            "--cluster",
            default=uuid.uuid4().hex,
            metavar="NAME",
            help="name of this cluster; a restart with the same name takes over its predecessor's "
            "deliveries at once (default: a new name)",
        )

    def handle(self, *, cluster: str, **options: Any) -> None:
        """Block until stopped."""
        refuse_wrong_keys()
        raise SystemExit(run(cluster))
