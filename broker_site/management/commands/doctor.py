"""``manage.py doctor``: what is misconfigured, and how to mend it."""

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.core.checks import run_checks
from django.core.checks.messages import ERROR, WARNING
from django.core.management.base import CommandParser
from django.db import Error as DatabaseFailure

from broker_site.observability import diagnosis
from broker_site.observability.diagnosis import Finding, Level
from channels_app.database.raw import dialect
from delivery.management.base import Command as BaseCommand
from delivery.management.base import counted

WIDTH = 70
LEVELS: tuple[Level, ...] = ("error", "warning", "info")


class Command(BaseCommand):
    """Shows what system checks and broker_site/observability/diagnosis.py found."""

    help = (
        "Check settings, database, workers, sweeps and keys, and print what is wrong and how to "
        "fix it. Changes nothing.\n\n"
        "The exit code is 1 if there is an error, 0 if there are at most warnings."
    )
    examples = "  manage.py doctor\n  manage.py doctor --json | jq -r '.findings[].sentence'"
    # It runs the checks itself, and continues if one fails.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        """``--json``."""
        parser.add_argument("--json", action="store_true", help="print the findings as JSON")

    def handle(self, *, json: bool, **options: Any) -> None:
        """Exit code 1 when there is an error."""
        findings = sorted(
            [*_system_checks(), *diagnosis.find()], key=lambda f: LEVELS.index(f.level)
        )
        if json:
            self._print_json(findings)
        else:
            self._print(findings)
        if any(finding.level == "error" for finding in findings):
            raise SystemExit(1)

    def _print_json(self, findings: list[Finding]) -> None:
        document = {
            "status": findings[0].level if findings else "ok",
            "version": settings.VERSION,
            "findings": [asdict(finding) for finding in findings],
        }
        self.stdout.write(json.dumps(document, indent=2))

    def _print(self, findings: list[Finding]) -> None:
        self.stdout.write(f"Hookstation {settings.VERSION} on {dialect.name}")
        paint = {
            "error": self.style.ERROR,
            "warning": self.style.WARNING,
            "info": self.style.NOTICE,
        }
        for finding in findings:
            first, *rest = textwrap.wrap(finding.sentence, WIDTH) or [""]
            if finding.hint:
                rest += textwrap.wrap(f"-> {finding.hint}", WIDTH, subsequent_indent="   ")
            self.stdout.write(f"\n{paint[finding.level](f'{finding.level:<8}')} {first}")
            for line in rest:
                self.stdout.write(f"{'':8} {line}")
        self.stdout.write(f"\n{self._sum_up([finding.level for finding in findings])}")

    def _sum_up(self, levels: list[Level]) -> str:
        errors, warnings = levels.count("error"), levels.count("warning")
        if errors:
            return f"{counted(errors, 'error')}, {counted(warnings, 'warning')}."
        if warnings:
            return f"Nothing is broken. {counted(warnings, 'warning')}."
        return self.style.SUCCESS(
            "All is well: no problem with settings, database, workers and data."
        )


def _system_checks() -> Iterator[Finding]:
    """Findings of the system checks, which also run at each start."""
    try:
        messages = run_checks(databases=["default"])
    except DatabaseFailure:
        messages = run_checks()  # the diagnosis reports that it is unavailable
    for message in messages:
        if message.level >= WARNING and not message.is_silenced():
            level: Level = "error" if message.level >= ERROR else "warning"
            meta = getattr(message.obj, "_meta", None)
            sentence = f"{meta.label}: {message.msg}" if meta else str(message.msg)
            yield Finding(level, str(message.id), sentence, str(message.hint or ""))
