"""Provide ``manage.py demo``, which runs the whole broker with sample data and no setup."""

import signal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from delivery.cluster import children
from delivery.cluster.supervisor import Supervisor
from delivery.conf import conf
from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error
from delivery.management.demo import stage
from delivery.management.demo.narrator import Narrator
from delivery.management.demo.stage import Stage
from delivery.processes.control import Child

MAX_RATE = 500.0


class Command(BaseCommand):
    """Runs delivery/management/demo. broker_site/demo.py prepares the environment first."""

    help = (
        "Run the whole broker on this machine and watch it work: web server, delivery workers, a\n"
        "shop that publishes, and four consumers of which three misbehave.\n\n"
        "It needs no setup and changes only its own folder, data/demo. Ctrl-C stops it and all\n"
        "of its processes; the next start continues where this one ended."
    )
    examples = (
        "  manage.py demo\n"
        "  manage.py demo --fresh --rate 50\n"
        "  manage.py demo --port 9000 --seconds 30"
    )
    # The command creates the tables.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add folder, rate and duration."""
        parser.add_argument(
            "--port",
            type=int,
            default=children.DEFAULT_PORT,
            metavar="N",
            help="port of the web server (default: %(default)s)",
        )
        parser.add_argument(
            "--rate",
            type=float,
            default=5.0,
            metavar="N",
            help="messages published per second (default: %(default)g)",
        )
        parser.add_argument("--seconds", type=float, metavar="N", help="stop after this time")
        parser.add_argument("--fresh", action="store_true", help="delete the data of earlier demos")

    def handle(
        self, *, port: int, rate: float, seconds: float | None, fresh: bool, **options: Any
    ) -> None:
        """Exit with code 1 when it cannot start."""
        if not 0 < rate <= MAX_RATE:
            raise Error(f"--rate must be above 0 and at most {MAX_RATE:g}.")
        folder = Path(settings.DATA_DIR)
        with stage.lock(folder):
            web, receiver = stage.find_ports(port)
            if fresh:
                stage.forget(folder)
            self._say("Getting ready ...")
            built = stage.build(folder, web, receiver)
            supervisor = Supervisor(_children(built), grace_s=conf().grace_s)
            narrator = Narrator(built, self._say, supervisor, rate=rate, seconds=seconds)
            # From here on only the supervisor handles signals; another signal must not cut the
            # summary off.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            children.preload(web=True)
            supervisor.run(on_start=narrator.start)
            self._say(narrator.finish())
            if narrator.failed:
                raise SystemExit(1)

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()


def _children(built: Stage) -> list[Child]:
    receiver = children.ours(
        *("receiver", "--quiet"),
        *("--bind", str(built.receiver), "--secrets-file", str(built.secrets_file)),
    )
    return [children.web(built.web), children.worker(), receiver]
