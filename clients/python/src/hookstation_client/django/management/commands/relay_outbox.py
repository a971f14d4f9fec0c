"""Relay the outbox to the broker, for as long as the process runs."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, close_old_connections

from hookstation_client.django.outbox import MAX_PAUSE_S, Relay
from hookstation_client.errors import HookstationError
from hookstation_client.stopping import wait_until_set


class Command(BaseCommand):
    """The command ``relay_outbox``."""

    help = "Publish the messages that committed transactions wrote to the outbox."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--once", action="store_true", help="Publish the waiting messages, then end."
        )
        parser.add_argument("--database", default="default", help="Database of the outbox.")
        parser.add_argument("--poll", type=float, default=1.0, help="Seconds between polls.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it. SIGTERM and SIGINT end it after the current batch."""
        relay = Relay(options["database"])
        if options["once"]:
            try:
                published = relay.drain_all()
            except HookstationError as error:
                raise CommandError(f"Not everything could be published: {error}") from error
            self.stdout.write(f"{published} messages published.")
            return
        ending = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ending.set())
        pause = options["poll"]
        while not ending.is_set():
            try:
                close_old_connections()
                relay.drain(ending.is_set)
                pause = options["poll"]
            except (HookstationError, DatabaseError) as error:
                self.stderr.write(f"Cannot relay the outbox: {error}")
                pause = min(MAX_PAUSE_S, pause * 2)
            wait_until_set(ending, pause)
