"""Provide ``manage.py broker``, which runs the broker or a part of it in the foreground."""

from typing import Any

from django.core.management.base import CommandParser
from django.db import connection

from channels_app.database import transactions
from delivery.cluster import children
from delivery.cluster.supervisor import Supervisor
from delivery.conf import conf
from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error, refuse_wrong_keys
from delivery.processes.control import Child


class Command(BaseCommand):
    """Starts web server and workers, and keeps them running until Ctrl-C or SIGTERM."""

    help = "Run the broker: web server and delivery workers, restarted if they die."
    examples = (
        "  manage.py broker\n"
        "  manage.py broker --bind 0.0.0.0:8000 --role web\n"
        "  manage.py broker --role worker"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add ``--bind`` and ``--role``."""
        parser.add_argument(
            "--bind",
            default="127.0.0.1:8000",
            metavar="HOST:PORT",
            help="address of the web server (default: %(default)s)",
        )
        parser.add_argument(
            "--role",
            choices=["web", "worker", "all"],
            default="all",
            help="what to run here; workers may run on other hosts (default: %(default)s)",
        )

    def handle(self, *, bind: str, role: str, **options: Any) -> None:
        """Block until stopped."""
        refuse_wrong_keys()
        wanted: list[Child] = []
        try:
            if role != "worker":
                wanted.append(self._web(bind))
                if conf().grpc_address:
                    wanted.append(self._grpc(conf().grpc_address))
            if role != "web":
                wanted.append(self._worker())
        except children.Unusable as error:
            raise Error(str(error)) from None
        self.stdout.write("Ctrl-C stops.")
        self.stdout.flush()
        transactions.limit_answer_time()  # also for the query whether the workers are alive
        children.preload(web=role != "worker")
        Supervisor(wanted, grace_s=conf().grace_s).run()

    def _web(self, text: str) -> Child:
        bind = children.Bind.parse(text)
        bind.check_free()
        processes, threads = children.web_workers(), children.web_threads()
        self.stdout.write(f"web     {bind.url} (processes: {processes}, threads: {threads})")
        return children.web(bind)

    def _grpc(self, text: str) -> Child:
        bind = children.Bind.parse(text)
        child = children.grpc(bind)
        bind.check_free()
        self.stdout.write(f"grpc    {bind}")
        return child

    def _worker(self) -> Child:
        self.stdout.write(f"worker  {_database()} (pumps: {conf().pumps})")
        return children.worker()


def _database() -> str:
    """Return kind and place of the database, without user and password."""
    at = connection.settings_dict
    host = f"{at['HOST']}:{at['PORT']}/" if at["HOST"] else ""
    return f"{connection.display_name} {host}{at['NAME']}"
