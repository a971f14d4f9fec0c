"""Queue tasks that write letters: ``manage.py send_letters FIRST LAST FOLDER``."""

import time
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from django.core.management.base import BaseCommand, CommandParser
from django_q.tasks import async_task

PAUSE_S = 0.02


class Command(BaseCommand):
    """Queue letters and print the number of each stored task."""

    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments: first and last number, and the folder."""
        parser.add_argument("first", type=int)
        parser.add_argument("last", type=int)
        parser.add_argument("folder")

    def handle(self, first: int, last: int, folder: str, **options: Any) -> None:
        """Queue the letters in order; repeat one after an error."""
        for number in range(first, last + 1):
            while not self._is_queued(number, folder):
                time.sleep(0.5)
            self.stdout.write(f"{number}")
            self.stdout.flush()
            time.sleep(PAUSE_S)

    def _is_queued(self, number: int, folder: str) -> bool:
        try:
            async_task("shop.tasks.send_letter", number, folder)
        except (BotoCoreError, ClientError) as error:
            self.stderr.write(f"letter {number} is sent again: {error}")
            return False
        return True
