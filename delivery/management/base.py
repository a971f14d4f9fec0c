"""Provide the base class of commands with readable help, progress bars and number formats."""

import getpass
import textwrap
import time
from argparse import SUPPRESS
from contextlib import suppress
from typing import Any

from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
    OutputWrapper,
)
from django.db import Error as DatabaseFailure

from channels_app.access.principal import Principal
from channels_app.conf import INSTALLATION
from channels_app.core import program
from channels_app.core.program import typed
from channels_app.registry import data_encryption

BAR_WIDTH = 30
REDRAW_S = 0.1


class HelpFormatter(DjangoHelpFormatter):
    """Wraps paragraphs, and keeps paragraphs with indented lines as written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = [
            part if "\n " in f"\n{part}" else textwrap.fill(part, width)
            for part in text.split("\n\n")
        ]
        return textwrap.indent("\n\n".join(paragraphs), indent)


class Error(CommandError):
    """An error of a command. Django prints the class's name before the message."""


def refuse_wrong_keys() -> None:
    """Raise Error if the keys here do not decrypt this installation's data.

    If the database is unavailable nothing is raised; the processes check again when it is back.
    """
    with suppress(DatabaseFailure):
        if refusal := data_encryption.refusal():
            raise Error(refusal)
        data_encryption.encrypting_key()  # the first start records the encrypting key


class Command(BaseCommand):
    """A command with a prose ``help``; ``examples`` are printed at the end of ``--help``."""

    examples: str = ""
    requires_system_checks: list[str] | tuple[str, ...] = [INSTALLATION]
    suppressed_base_arguments = {
        "--version",
        "--verbosity",
        "--settings",
        "--pythonpath",
        "--traceback",
        "--force-color",
    }

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Add examples to Django's parser, and print commands as people type them."""
        kwargs.setdefault("formatter_class", HelpFormatter)
        if self.examples:
            kwargs.setdefault("epilog", f"examples:\n{typed(self.examples)}")
        parser = super().create_parser(program.name(), subcommand, **kwargs)
        parser.description = typed(self.help)
        for action in parser._actions:
            # Django adds this option despite suppressed_base_arguments.
            if "--skip-checks" in action.option_strings:
                action.help = SUPPRESS
        return parser


class ProgressBar:
    """A bar on a terminal. Elsewhere it prints nothing, to keep log files short."""

    def __init__(self, out: OutputWrapper, total: int, noun: str) -> None:
        self._out = out
        self._total = total
        self._noun = noun
        self._shown = out.isatty() and total > 0
        self._started = time.monotonic()
        self._drawn = float("-inf")

    def show(self, done: int, share: float | None = None) -> None:
        """Draw ``done`` of the total, at most ten times a second.

        ``share`` is the completed share if the total is unknown.
        """
        now = time.monotonic()
        if not self._shown or (now - self._drawn < REDRAW_S and done < self._total):
            return
        self._drawn = now
        share = min(done / self._total if share is None else share, 1.0)
        filled = round(share * BAR_WIDTH)
        bar = "█" * filled + "░" * (BAR_WIDTH - filled)
        rate = done / max(now - self._started, 1e-9)
        text = f"\r  {bar} {share:4.0%}  {done:,} {self._noun}  {rate:,.0f}/s\x1b[K"
        self._out.write(text, ending="")
        self._out.flush()

    def close(self) -> None:
        """Remove the bar."""
        if self._shown:
            self._out.write("\r\x1b[K", ending="")
            self._out.flush()


def principal() -> Principal:
    """Return the operating system's user, an operator."""
    return Principal(f"command:{getpass.getuser()}", is_operator=True)


def counted(number: int, noun: str) -> str:
    """Format a count: ``1 message``, ``1,204 messages``, ``2 deliveries``."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{number:,} {plural}"


def sized(size: int) -> str:
    """Format bytes: ``512 B``, ``7.7 kB``, ``3.5 MB``."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5:
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{value / 1000:.1f} TB"
