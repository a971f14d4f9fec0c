"""``manage.py grpc``: the gRPC server without a supervisor."""

from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from delivery.grpc import server
from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error, refuse_wrong_keys


class Command(BaseCommand):
    """Serves streams until SIGTERM."""

    help = (
        "Run the gRPC server in the foreground. Usually `manage.py broker` starts it where "
        "HOOKSTATION_GRPC_ADDRESS is set, and restarts it when it dies or hangs."
    )
    examples = "  manage.py grpc\n  manage.py grpc --bind 127.0.0.1:9090"

    def add_arguments(self, parser: CommandParser) -> None:
        """``--bind``."""
        parser.add_argument(
            "--bind",
            default=settings.ENVIRONMENT.grpc_address,
            metavar="HOST:PORT",
            help="address to listen on (default: HOOKSTATION_GRPC_ADDRESS)",
        )

    def handle(self, *, bind: str, **options: Any) -> None:
        """Block until stopped."""
        refuse_wrong_keys()
        if not bind:
            raise Error("Pass --bind, or set HOOKSTATION_GRPC_ADDRESS.")
        try:
            server.run(bind, server.configured_certificate())
        except OSError as error:
            raise Error(f"Cannot serve gRPC on {bind}: {error}") from None
