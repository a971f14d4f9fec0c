"""Provide ``manage.py rotate_keys``, which encrypts everything with a new key."""

import time
from typing import Any

from django.core.management.base import CommandParser

from channels_app import keystore
from channels_app.conf import keyring
from channels_app.steps import reencrypt
from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error, Progress, counted, refuse_wrong_keys
from delivery.runtime import reencrypt_responses, registration

SHOWN = 20
POLL_S = 0.5


class Command(BaseCommand):
    """Activates the first key once all processes have it, then reencrypts everything."""

    help = (
        "Let the first key of HOOKSTATION_ENCRYPTION_KEYS seal, as soon as every living process\n"
        "of the installation has read it. Then seal again what the other keys sealed: signing\n"
        "secrets, static headers, second factors, all bodies with their forwarded headers,\n"
        "and answers.\n\n"
        "Runs beside the broker, in small transactions. It may be stopped at any time and run\n"
        "again: what is done stays done. When it ends without a complaint, the old keys can go."
    )
    examples = (
        "  manage.py rotate_keys\n"
        "      after a new key was put in front of the old ones on every host, and\n"
        "      everything was restarted"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add ``--wait``."""
        parser.add_argument(
            "--wait",
            type=float,
            default=60.0,
            metavar="SECONDS",
            help="how long to wait for processes that have not read the key (default: %(default)g)",
        )

    def handle(self, *, wait: float, **options: Any) -> None:
        """Exit with code 1 when a process lacks the key, or a row could not be decrypted."""
        refuse_wrong_keys()
        if (key_id := keyring().primary_id) != keystore.encrypting_key_id():
            self._wait_for_all(key_id, wait)
            keystore.activate(key_id)
            self.stdout.write(f"Key {key_id} seals from now on.")
            # Until no process encrypts with the former key any more.
            time.sleep(2 * keystore.FRESH_S)
        self._reencrypt_all()

    def _wait_for_all(self, key_id: str, seconds: float) -> None:
        end, shown = time.monotonic() + seconds, ""
        while lacking := [one.name for one in registration.holders() if key_id not in one.keys]:
            if (names := "".join(f"\n  {name}" for name in lacking)) != shown:
                self.stderr.write(f"Waiting for processes that have not read key {key_id}:{names}")
                shown = names
            if time.monotonic() >= end:
                raise Error(
                    f"Processes that have not read key {key_id}:{names}\n"
                    "Nothing was changed. Put the key into HOOKSTATION_ENCRYPTION_KEYS there, "
                    "restart them, and run this again."
                )
            time.sleep(POLL_S)

    def _reencrypt_all(self) -> None:
        unreadable: list[str] = []
        for kind in (*reencrypt.kinds(), reencrypt_responses.kind()):
            unreadable += self._reencrypt(kind)
        if unreadable:
            more = f"\n  ... and {len(unreadable) - SHOWN} more" if len(unreadable) > SHOWN else ""
            lines = "".join(f"\n  {sentence}" for sentence in unreadable[:SHOWN])
            raise Error(
                f"{counted(len(unreadable), 'row')} could not be opened and stayed as they are."
                f"{lines}{more}\nAdd the missing key to HOOKSTATION_ENCRYPTION_KEYS, behind the "
                "first, and run this again."
            )
        self.stdout.write(
            self.style.SUCCESS(f"Everything is sealed with key {keystore.encrypting_key_id()}.")
        )

    def _reencrypt(self, kind: reencrypt.Kind) -> list[str]:
        progress = Progress(self.stdout, kind.total(), kind.noun)
        looked, reencrypted = 0, 0
        unreadable: list[str] = []
        for batch in kind.reencrypt():
            looked += batch.looked
            reencrypted += batch.reencrypted
            unreadable += batch.unreadable
            progress.show(looked)
        progress.close()
        self.stdout.write(f"{counted(looked, kind.noun)}: {reencrypted:,} sealed again")
        return unreadable
