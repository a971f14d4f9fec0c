"""Provide ``manage.py worker``, which runs the delivery cluster without a supervisor."""

import uuid
from typing import Any

from django.core.management.base import CommandParser

from delivery.management.base import Command as BaseCommand
from delivery.management.base import refuse_wrong_keys
from delivery.runtime import cluster


class Command(BaseCommand):
    """Runs pumps, sweeps and schedules until SIGTERM."""

    help = (
        "Run the delivery workers in the foreground. Usually started by `manage.py broker`, which "
        "restarts them when they die or stand still; use it alone under a process manager of your "
        "own that signals the main process only."
    )
    examples = "  manage.py worker"

    def add_arguments(self, parser: CommandParser) -> None:
        """Add ``--cluster``."""
        parser.add_argument(
            "--cluster",
            default=uuid.uuid4().hex,
            metavar="NAME",
            help="name of this start; a restart under the same name takes over its predecessor's "
            "deliveries at once (default: a new one)",
        )

    def handle(self, *, cluster: str, **options: Any) -> None:
        """Block until stopped."""
        refuse_wrong_keys()
        raise SystemExit(run(cluster))


run = cluster.run
