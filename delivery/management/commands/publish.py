"""Provide ``manage.py publish``, which publishes a file of messages."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from django.conf import settings
from django.core.management.base import CommandParser

from channels_app.conf import MAX_BATCH_ITEMS
from channels_app.core.program import typed
from channels_app.models import Producer
from delivery.management import publishing
from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error, ProgressBar, counted
from delivery.management.publishing import Outlet, Reader, Run, batches


class Command(BaseCommand):
    """Publishes a file through delivery/management/publishing.py and prints the results."""

    help = (
        "Publish the messages of a JSONL file on a channel: one JSON object in each line, sent in\n"
        "batches of up to 1,000 through the REST API.\n\n"
        '  {"body": "exact text", "event_type": "order.created"}\n'
        '  {"body": {"any": "JSON"}, "priority": 7, "idempotency_key": "order-17"}\n\n'
        "Fields are those of the batch endpoint; event is an alias of event_type, and a body\n"
        "that is not text is sent as JSON. Refused messages are reported with their line; the\n"
        "others are still stored. With --idempotent you can publish the file again after a\n"
        "failure: messages that were stored already are not stored twice."
    )
    examples = (
        "  manage.py publish hooks.jsonl --channel orders --key-file shop.key\n"
        "  manage.py publish hooks.jsonl --channel orders --direct --dry-run\n"
        "  zcat old.gz | manage.py publish - --channel orders --key-file shop.key"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add file, channel and options."""
        parser.add_argument("file", metavar="FILE", help="a JSONL file; - reads standard input")
        parser.add_argument("--channel", required=True, metavar="NAME", help="where to publish")
        parser.add_argument(
            "--key-file", metavar="PATH", help="file with an API key; - reads standard input"
        )
        parser.add_argument(
            "--url",
            default=settings.PUBLIC_URL,
            metavar="URL",
            help="address of the broker (default: %(default)s)",
        )
        parser.add_argument(
            "--direct",
            action="store_true",
            help="store directly in this installation's database, without web server and key",
        )
        parser.add_argument(
            "--producer", metavar="NAME", help="with --direct: publish as this producer"
        )
        parser.add_argument(
            "--idempotent",
            action="store_true",
            help="give each message without an idempotency key one derived from its line, so that "
            "repeating the command stores nothing twice",
        )
        parser.add_argument(
            "--content-type",
            default="application/json",
            metavar="TYPE",
            help="content type of messages without one (default: %(default)s)",
        )
        parser.add_argument(
            "--batch",
            type=int,
            default=MAX_BATCH_ITEMS,
            metavar="N",
            help="messages per request, 1 to %(default)s (default: %(default)s)",
        )
        parser.add_argument("--dry-run", action="store_true", help="read the file, send nothing")

    def handle(self, *, file: str, batch: int, dry_run: bool, **options: Any) -> None:
        """Exit with code 1 when any message was not stored."""
        if not 1 <= batch <= MAX_BATCH_ITEMS:
            raise Error(f"--batch must be from 1 to {MAX_BATCH_ITEMS}.")
        outlet = None if dry_run else self._outlet(file, options)
        reader = Reader(options["content_type"], idempotent=options["idempotent"])
        with ExitStack() as stack:
            stream, total = _open(file, stack)
            progress = ProgressBar(self.stdout, total, "messages")
            run = Run(outlet, progress)
            try:
                run.go(batches(reader.read(stream), items=batch))
            finally:
                progress.close()
                self._sum_up(run, reader)
        if run.refused or run.broken:
            raise SystemExit(1)

    def _sum_up(self, run: Run, reader: Reader) -> None:
        for sentence in run.shown:
            self.stderr.write(sentence, self.style.WARNING)
        if run.refused > len(run.shown):
            self.stderr.write(f"... and {run.refused - len(run.shown):,} more.")
        for name, times in reader.unused.most_common():
            note = f"The unknown field {name} was ignored ({times:,} lines)."
            self.stderr.write(note, self.style.NOTICE)
        self.stdout.write(run.summary())
        if run.broken:
            stopped = f"Stopped after {counted(run.done, 'line')}: {run.broken}"
            self.stderr.write(stopped, self.style.ERROR)

    def _outlet(self, file: str, options: dict[str, Any]) -> Outlet:
        if options["direct"]:
            return publishing.Direct(options["channel"], _producer(options["producer"]))
        if options["producer"]:
            raise Error("--producer needs --direct; otherwise the key determines the producer.")
        key = _key(options["key_file"], file)
        return publishing.Api(
            options["url"].rstrip("/"), options["channel"], key, on_pause=self._keeps_trying
        )

    def _keeps_trying(self, reason: str) -> None:
        seconds = f"{publishing.RETRY_TIMEOUT_S:.0f} s"
        self.stderr.write(f"{reason} Trying again for up to {seconds}.", self.style.WARNING)


def _open(file: str, stack: ExitStack) -> tuple[BinaryIO, int]:
    """Return the lines and their number (0: unknown)."""
    if file == "-":
        return sys.stdin.buffer, 0
    try:
        with Path(file).open("rb") as stream:
            total = sum(1 for line in stream if line.strip())
        return stack.enter_context(Path(file).open("rb")), total
    except OSError as error:
        raise Error(f"{file} cannot be read: {error.strerror}.") from None


def _key(key_file: str | None, file: str) -> str:
    if key_file is None:
        raise Error(
            typed(
                "Give an API key with --key-file PATH. "
                "`manage.py create_api_key PRODUCER --channel CHANNEL` prints one. "
                "With --direct this installation's database needs none."
            )
        )
    if key_file == "-":
        if file == "-":
            raise Error("Standard input cannot be both the messages and the key.")
        return sys.stdin.readline().strip()
    try:
        return Path(key_file).read_text("utf-8").strip()
    except OSError as error:
        raise Error(f"{key_file} cannot be read: {error.strerror}.") from None


def _producer(slug: str | None) -> Producer | None:
    if slug is None:
        return None
    producer = Producer.objects.filter(slug=slug).first()
    if producer is None:
        raise Error(
            f"There is no producer {slug!r}; {typed('`manage.py apply`')} creates producers."
        )
    return producer
