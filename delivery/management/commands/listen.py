"""Provide ``manage.py listen``, which receives a channel's messages on a private machine."""

import getpass
import re
import secrets
import signal
from pathlib import Path
from typing import Any

import requests
from django.conf import settings
from django.core.management.base import CommandParser
from django.utils import timezone

from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error, counted, sized
from delivery.management.listening import KeyRefused, Listener, ReceivedMessage


class Command(BaseCommand):
    """Prints messages received by delivery/management/listening.py."""

    help = (
        "Show the messages of a channel as they arrive, and forward them to a program on this\n"
        "machine, which needs no public address. The command registers a pull consumer of its\n"
        "own, and retires it when it ends. It does not show earlier messages.\n\n"
        "A message that --forward does not answer with a 2xx is delivered again. Forwarded\n"
        "messages have the headers that a consumer gets, without a signature."
    )
    examples = (
        "  manage.py listen orders --key-file my.key\n"
        "  manage.py listen orders --key-file my.key \\\n"
        "      --forward http://127.0.0.1:3000/hook\n"
        "  manage.py listen orders --key-file my.key --event 'order.*' --bodies"
    )
    # Talks to a broker anywhere and needs no database here.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add channel, consumer and forwarding URL."""
        parser.add_argument("channel", metavar="CHANNEL", help="name of the channel")
        parser.add_argument(
            "--key-file",
            required=True,
            metavar="PATH",
            help="file with an API key with the scopes register and receive",
        )
        parser.add_argument(
            "--url",
            default=settings.PUBLIC_URL,
            metavar="URL",
            help="address of the broker (default: %(default)s)",
        )
        parser.add_argument(
            "--forward", metavar="URL", help="URL to which each message is forwarded"
        )
        parser.add_argument(
            "--event",
            action="append",
            default=[],
            metavar="NAME",
            help="only this event type, or a pattern like order.*; may be repeated",
        )
        parser.add_argument(
            "--name", metavar="NAME", help="consumer's name (default: listen-USER-...)"
        )
        parser.add_argument("--bodies", action="store_true", help="also print the bodies")

    def handle(
        self, *, channel: str, key_file: str, url: str, bodies: bool, **options: Any
    ) -> None:
        """Listen until Ctrl-C or SIGTERM."""
        try:
            key = Path(key_file).read_text("utf-8").strip()
        except OSError as error:
            raise Error(f"{key_file} cannot be read: {error.strerror}.") from None
        name = options["name"] or _name()
        listener = Listener(
            url.rstrip("/"), channel, name, key, options["forward"], tuple(options["event"])
        )
        self.bodies, self.count = bodies, 0
        listener.show = self._show
        try:
            listener.begin()
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            self.stdout.write(f"Listening on {channel} as {name}.   Ctrl-C stops.")
            self.stdout.flush()
            try:
                while True:
                    listener.listen()
            except KeyboardInterrupt:
                pass
            finally:
                listener.end()
        except KeyRefused as refused:
            raise Error(str(refused)) from None
        except requests.RequestException:
            raise Error(f"{url} cannot be reached.") from None
        self.stdout.write(f"Stopped after {counted(self.count, 'message')}.")

    def _show(self, received: ReceivedMessage) -> None:
        self.count += 1
        colour = self.style.SUCCESS if received.is_done else self.style.WARNING
        shown = colour("-" if received.status is None else str(received.status))
        message = received.message
        self.stdout.write(
            f"{timezone.now():%H:%M:%S} {shown:<3} {message['event_type'] or '-':<20} "
            f"try {message['attempt']} {sized(len(received.body)):>7}  {message['id']}"
        )
        if self.bodies:
            self.stdout.write(received.body.decode("utf-8", "replace"))
        self.stdout.flush()


def _name() -> str:
    user = re.sub(r"[^a-z0-9-]", "-", getpass.getuser().lower())[:40]
    return f"listen-{user}-{secrets.token_hex(3)}"
