"""Provide ``manage.py rotate_keys``, which encrypts everything with a new key."""

import time
from typing import Any

from django.core.management.base import CommandParser

from channels_app.conf import keyring
from channels_app.registry import data_encryption, reencryption
from delivery.maintenance import reencrypt_responses
from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error, ProgressBar, counted, refuse_wrong_keys
from delivery.processes import registration

SHOWN = 20
POLL_S = 0.5


class Command(BaseCommand):
    """Activates the first key once all processes have it, then reencrypts everything."""

    help = (
        "Encrypt with the first key of HOOKSTATION_ENCRYPTION_KEYS, as soon as every running\n"
        "process of the installation has read it. Then re-encrypt everything that other keys\n"
        "encrypted: signing secrets, static headers, second factors, all bodies with their\n"
        "forwarded headers, and responses.\n\n"
        "Runs beside the broker, in small transactions. You can stop it at any time and run it\n"
        "again: it continues where it stopped. When it ends without an error, you can remove\n"
        "the old keys."
    )
    examples = (
        "  manage.py rotate_keys\n"
        "      after you have put a new key in front of the old ones on every host, and\n"
        "      restarted everything"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add ``--wait``."""
        parser.add_argument(
            "--wait",
            type=float,
            default=60.0,
            metavar="SECONDS",
            help="seconds to wait for processes that have not read the key (default: %(default)g)",
        )

    def handle(self, *, wait: float, **options: Any) -> None:
        """Exit with code 1 when a process lacks the key, or a row could not be decrypted."""
        refuse_wrong_keys()
        if (key_id := keyring().primary_id) != data_encryption.encrypting_key_id():
            self._wait_for_all(key_id, wait)
            data_encryption.activate(key_id)
            self.stdout.write(f"Key {key_id} encrypts from now on.")
            # Until no process encrypts with the former key any more.
            time.sleep(2 * data_encryption.FRESH_S)
        self._reencrypt_all()

    def _wait_for_all(self, key_id: str, seconds: float) -> None:
        end, shown = time.monotonic() + seconds, ""
        while lacking := [
            holder.name for holder in registration.holders() if key_id not in holder.keys
        ]:
            if (names := "".join(f"\n  {name}" for name in lacking)) != shown:
                self.stderr.write(f"Waiting for processes that have not read key {key_id}:{names}")
                shown = names
            if time.monotonic() >= end:
                raise Error(
                    f"Processes that have not read key {key_id}:{names}\n"
                    "Nothing was changed. Add the key to HOOKSTATION_ENCRYPTION_KEYS on their "
                    "hosts, restart them, and run this command again."
                )
            time.sleep(POLL_S)

    def _reencrypt_all(self) -> None:
        unreadable: list[str] = []
        for kind in (*reencryption.kinds(), reencrypt_responses.kind()):
            unreadable += self._reencrypt(kind)
        if unreadable:
            more = f"\n  ... and {len(unreadable) - SHOWN} more" if len(unreadable) > SHOWN else ""
            lines = "".join(f"\n  {sentence}" for sentence in unreadable[:SHOWN])
            raise Error(
                f"{counted(len(unreadable), 'row')} could not be decrypted and are unchanged."
                f"{lines}{more}\nAdd the missing key to HOOKSTATION_ENCRYPTION_KEYS, after the "
                "first, and run this command again."
            )
        self.stdout.write(
            self.style.SUCCESS(
                f"Everything is encrypted with key {data_encryption.encrypting_key_id()}."
            )
        )

    def _reencrypt(self, kind: reencryption.RowKind) -> list[str]:
        progress = ProgressBar(self.stdout, kind.total(), kind.noun)
        looked, reencrypted = 0, 0
        unreadable: list[str] = []
        for batch in kind.reencrypt():
            looked += batch.looked
            reencrypted += batch.reencrypted
            unreadable += batch.unreadable
            progress.show(looked)
        progress.close()
        self.stdout.write(f"{counted(looked, kind.noun)}: {reencrypted:,} re-encrypted")
        return unreadable
