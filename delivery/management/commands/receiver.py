"""Provide ``manage.py receiver``, a consumer for tests by hand."""

import signal
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from delivery.cluster.children import Bind, Unusable
from delivery.management import receiver
from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error, counted, sized


class Command(BaseCommand):
    """Serves delivery/management/receiver.py and prints a line for each request."""

    help = (
        "Run a small consumer for trying out the broker. It checks signatures, prints one line\n"
        "for each request, and misbehaves on some paths:\n\n"
        "  /slow?ms=800                        answers late\n"
        "  /failing?status=500&retry_after=5   never succeeds\n"
        "    &types=order.paid,order.sent      fails for these event types only\n"
        "    &until=replay                     fails until the message is replayed\n"
        "  /recovering?after=2                 fails twice per message, then succeeds\n"
        "  /hang                               never answers\n"
        "  anything else                       succeeds at once\n"
        "  GET /stats                          requests so far, as JSON"
    )
    examples = (
        "  manage.py receiver\n"
        "  manage.py receiver --bind 127.0.0.1:9000 --secret /orders=whsec_...\n"
        "  manage.py receiver --secrets-file secrets.txt   PATH=SECRET lines"
    )
    # Needs neither database nor keys.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the address and the secrets."""
        parser.add_argument(
            "--bind",
            default="127.0.0.1:9000",
            metavar="HOST:PORT",
            help="address to listen on (default: %(default)s)",
        )
        parser.add_argument(
            "--secret",
            action="append",
            default=[],
            metavar="PATH=KEY",
            help="check requests to this path with its whsec_... or whpk_...; may be repeated",
        )
        parser.add_argument(
            "--secrets-file", metavar="FILE", help="file with one PATH=KEY per line"
        )
        parser.add_argument("--quiet", action="store_true", help="print nothing")

    def handle(
        self, *, bind: str, secret: list[str], secrets_file: str | None, quiet: bool, **options: Any
    ) -> None:
        """Serve until Ctrl-C or SIGTERM."""
        try:
            address = Bind.parse(bind)
            address.check_free()
            file = Path(secrets_file).read_text("utf-8").splitlines() if secrets_file else []
            secrets = receiver.parse_secrets([*secret, *file])
        except (Unusable, ValueError) as error:
            raise Error(str(error)) from None
        except OSError as error:
            raise Error(f"{secrets_file} cannot be read: {error.strerror}.") from None
        consumer = receiver.ReceiverState(secrets)
        if not quiet:
            consumer.show = self._show
        server = receiver.Server((address.host, address.port), consumer)
        if not quiet:
            self.stdout.write(f"Listening on {address.url}   Ctrl-C stops.")
            self.stdout.flush()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            server.server_close()
        total = sum(tally["requests"] for tally in consumer.stats().values())
        if not quiet:
            self.stdout.write(f"Stopped after {counted(total, 'request')}.")

    def _show(self, seen: receiver.Seen) -> None:
        """Print one request as a line of at most 80 columns, unless names are long."""
        good = 200 <= seen.status < 300
        status = (self.style.SUCCESS if good else self.style.WARNING)(str(seen.status))
        attempt = f"try {seen.attempt}" if seen.attempt else "-"
        signature = {"valid": "signed", "unchecked": "-"}.get(seen.signature, "FORGED?")
        signature = self.style.ERROR(signature) if signature == "FORGED?" else signature
        suffix = "  again" if seen.repeated else ""
        self.stdout.write(
            f"{timezone.now():%H:%M:%S} {status} {seen.path:<12} {seen.event_type or '-':<15} "
            f"{attempt:<5} {signature:<6} {sized(seen.size):>7}  {seen.message_id or '-'}{suffix}"
        )
        self.stdout.flush()
