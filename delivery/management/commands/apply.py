"""Provide ``manage.py apply``, which applies a configuration file."""

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from delivery.management import applying, declaration
from delivery.management.applying import Applied, EntryChange
from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error, counted, principal

MAX_VALUE_LENGTH = 48


class Command(BaseCommand):
    """Applies a file through delivery/management/applying.py and prints the changes."""

    help = (
        "Create or change teams, channels, event types, producers, consumers and schedules as a\n"
        "TOML file says.\n\n"
        "You can run it repeatedly: entries that are unchanged are left alone. The file is\n"
        "applied as a whole; if anything in it is invalid, nothing is changed. Objects that the\n"
        "file does not mention are left alone. Fields are those of the REST API; an omitted\n"
        "field gets its default. Signing secrets of new consumers are printed, once, unless the\n"
        "file contains them."
    )
    examples = (
        "  manage.py apply hooks.toml --dry-run       show what would change\n"
        "  manage.py apply hooks.toml\n"
        "\n"
        "  [[teams]]\n"
        '  slug = "shop"\n'
        "  max_waiting_messages = 100000\n"
        "\n"
        "  [[channels]]\n"
        '  slug = "orders"\n'
        '  exposure = "external"\n'
        "\n"
        "  [[event_types]]\n"
        '  channel = "orders"\n'
        '  name = "order.created"\n'
        '  schema = \'{"type": "object", "required": ["id"]}\'\n'
        "\n"
        "  [[producers]]\n"
        '  slug = "shop"\n'
        '  team = "shop"\n'
        "  rate_limit = {per_second = 100, burst = 200}\n"
        "\n"
        "  [[consumers]]\n"
        '  channel = "orders"\n'
        '  client_id = "billing"\n'
        '  url = "https://billing.example.com/hooks"\n'
        '  event_types = ["order.*"]\n'
        "  max_in_flight = 10\n"
        '  secret_file = "billing.secret"   # or secret = "whsec_..."; or generated\n'
        "\n"
        "  [[schedules]]\n"
        '  channel = "orders"\n'
        '  name = "daily-report"\n'
        '  cron = "0 9 * * 1-5"\n'
        '  timezone = "Europe/Paris"\n'
        '  body = \'{"report": "daily"}\''
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the file and ``--dry-run``."""
        parser.add_argument("file", metavar="FILE", help="a TOML file; - reads standard input")
        parser.add_argument("--dry-run", action="store_true", help="show the changes, make none")

    def handle(self, *, file: str, dry_run: bool, **options: Any) -> None:
        """Exit with code 1, and change nothing, if there is any problem."""
        text, folder = _read(file)
        applied = applying.apply(
            declaration.parse(text, folder),
            principal=principal(),
            dry_run=dry_run,
            progress=self._report,
        )
        if applied.problems:
            lines = "".join(f"\n  {problem}" for problem in applied.problems)
            problems = counted(len(applied.problems), "problem")
            raise Error(f"{problems} in {file}, nothing was changed.{lines}")
        for change in applied.changes:
            self._show(change)
        self._sum_up(applied, dry_run)
        if not dry_run:
            self._show_secrets(applied)

    def _report(self, done: int, total: int) -> None:
        """Print progress on standard error, for large files."""
        if total > applying.BATCH_SIZE:
            self.stderr.write(f"{done:,} of {total:,} entries", ending="\n", style_func=str)

    def _show(self, change: EntryChange) -> None:
        paint = {"+": self.style.SUCCESS, "~": self.style.WARNING}.get(change.mark, str)
        title = f"{change.mark} {change.entry.table.noun} {change.entry.name}"
        self.stdout.write(paint(title))
        width = max((len(name) for name in change.fields), default=0)
        for name, (before, after) in change.fields.items():
            value = _written(after)
            if change.mark == "~":
                value = "changed" if after == before else f"{_written(before)} -> {value}"
            self.stdout.write(f"    {name:<{width}}  {value}")

    def _sum_up(self, applied: Applied, dry_run: bool) -> None:
        marks = [change.mark for change in applied.changes]
        numbers = (
            f"{marks.count('+')} new, {marks.count('~')} changed, {marks.count('=')} unchanged."
        )
        note = " Nothing was written (--dry-run)." if dry_run else ""
        self.stdout.write(numbers + note)

    def _show_secrets(self, applied: Applied) -> None:
        changes = [change for change in applied.changes if change.secret]
        if not changes:
            return
        self.stdout.write("\nSigning secrets of new consumers. They are not shown again:")
        width = max(len(change.entry.name) for change in changes)
        for change in changes:
            self.stdout.write(f"  {change.entry.name:<{width}}  {change.secret}")


def _read(file: str) -> tuple[str, Path]:
    """Return the text, and the folder that its paths are relative to."""
    try:
        if file == "-":
            return sys.stdin.read(), Path.cwd()
        return Path(file).read_text("utf-8"), Path(file).parent
    except OSError as error:
        raise Error(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise Error(f"{file} is not UTF-8 text.") from None


def _written(value: Any) -> str:
    """Format a value in at most a part of a line."""
    if value is None:
        return "default"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 1]}…"
