"""``manage.py reencrypt``: let go of old encryption keys."""

from typing import Any

from channels_app.conf import keyring
from channels_app.steps import reseal
from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error, Progress, counted

SHOWN = 20


class Command(BaseCommand):
    """Works channels_app/steps/reseal.py off with a progress bar."""

    help = (
        "Seal again, with the first key of HOOKSTATION_ENCRYPTION_KEYS, everything that the\n"
        "other keys sealed: signing secrets, static headers, second factors and all bodies.\n\n"
        "Runs beside the broker, in small transactions. It may be stopped at any time and run\n"
        "again: what is done stays done. When it ends without a complaint, the old keys can go."
    )
    examples = (
        "  manage.py reencrypt          after a new key was put in front of the old\n"
        "                               ones and everything was restarted"
    )

    def handle(self, **options: Any) -> None:
        """Exit code 1 when something could not be opened."""
        unreadable: list[str] = []
        for kind in reseal.kinds():
            unreadable += self._reseal(kind)
        if unreadable:
            more = f"\n  ... and {len(unreadable) - SHOWN} more" if len(unreadable) > SHOWN else ""
            lines = "".join(f"\n  {sentence}" for sentence in unreadable[:SHOWN])
            raise Error(
                f"{counted(len(unreadable), 'row')} could not be opened and stayed as they are."
                f"{lines}{more}\nAdd the missing key to HOOKSTATION_ENCRYPTION_KEYS, behind the "
                "first, and run this again."
            )
        self.stdout.write(
            self.style.SUCCESS(f"Everything is sealed with key {keyring().primary_id}.")
        )

    def _reseal(self, kind: reseal.Kind) -> list[str]:
        progress = Progress(self.stdout, kind.total(), kind.noun)
        looked, resealed = 0, 0
        unreadable: list[str] = []
        for batch in kind.reseal():
            looked += batch.looked
            resealed += batch.resealed
            unreadable += batch.unreadable
            progress.show(looked)
        progress.close()
        self.stdout.write(f"{counted(looked, kind.noun)}: {resealed:,} sealed again")
        return unreadable
