"""Provide ``manage.py reconcile``, which checks that every accepted message is accounted for."""

import json
import re
import textwrap
from argparse import ArgumentTypeError
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from channels_app.database import clock
from channels_app.models import Channel, Consumer
from delivery.core.reconciliation import EXPLANATIONS, STATES, Mismatch
from delivery.maintenance import reconciliations
from delivery.maintenance.reconciliations import Reconciler, Wanted
from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error, ProgressBar, counted
from delivery.models import ReconciliationReport

Span = ReconciliationReport.Span
WIDTH = 76
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
LENGTH = re.compile(r"(\d+)([smhd])")


class Command(BaseCommand):
    """Runs delivery/maintenance/reconciliations.py and prints its report."""

    help = (
        "Compare accepted messages with their deliveries, row by row. Checks that every message\n"
        "was fanned out to each matching consumer, that every delivery has a valid state and as\n"
        "many attempts as it counts, and that the counters are correct.\n\n"
        "It reads in short steps beside the running broker, locks nothing and changes nothing.\n"
        "The exit code is 1 if a check fails; the report explains each finding and how to fix it."
    )
    examples = (
        "  manage.py reconcile\n"
        "  manage.py reconcile --since 2h\n"
        "  manage.py reconcile --since 2026-03-01 --until 2026-03-02\n"
        "  manage.py reconcile --json | jq .gap"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the range of messages and the format of the report."""
        when = "an instant (2026-03-01, 2026-03-01T08:00:00Z) or how long ago (30m, 2h, 7d)"
        parser.add_argument(
            "--since", type=_instant, metavar="WHEN", help=f"messages accepted since: {when}"
        )
        parser.add_argument(
            "--until", type=_instant, metavar="WHEN", help="messages accepted before then"
        )
        parser.add_argument("--channel", metavar="NAME", help="only this channel")
        parser.add_argument("--consumer", metavar="CLIENT_ID", help="only this consumer")
        parser.add_argument(
            "--grace",
            type=_length,
            metavar="TIME",
            help="how long work may take before it is late, and how much clocks may differ: 0s, "
            "90s (default: HOOKSTATION_RECONCILE_GRACE_S)",
        )
        parser.add_argument(
            "--keep",
            action="store_true",
            help="store the report like the broker's own reconciliation of everything: the "
            "console shows it, and an alarm ends if its cause is fixed",
        )
        parser.add_argument("--json", action="store_true", help="print the report as JSON")
        parser.add_argument(
            "--limit-ids",
            type=int,
            default=20,
            metavar="N",
            help="maximum ids to print for each finding (default: %(default)s)",
        )

    def handle(self, *, json: bool, limit_ids: int, keep: bool, **options: Any) -> None:
        """Exit with code 1 when any check fails."""
        wanted, now = _wanted(options), clock.now()
        if keep and not wanted.is_everything:
            raise Error("--keep needs a reconciliation of everything: leave out the filters.")
        reconciler = Reconciler(wanted, now=now, most_ids=max(0, limit_ids))
        progress = ProgressBar(self.stdout, 0 if json else 1, "messages and deliveries")
        for share in reconciler.steps():
            progress.show(reconciler.result.looked.total(), share)
        progress.close()
        if keep:
            reconciliations.keep(reconciler, Span.EVERYTHING, now)
        if json:
            self._print_json(reconciler)
        else:
            self._print(reconciler)
        if reconciler.result.gap:
            raise SystemExit(1)

    def _print_json(self, reconciler: Reconciler) -> None:
        self.stdout.write(json.dumps(_document(reconciler), indent=2))

    def _print(self, reconciler: Reconciler) -> None:
        document = _document(reconciler)
        for line in _table(document["consumers"]):
            self.stdout.write(line)
        looked = f"{counted(document['messages'], 'message')} with "
        looked += counted(document["deliveries"], "delivery")
        findings = reconciler.findings()
        for finding in findings:
            self._print_finding(finding)
        if findings:
            text = f"{counted(reconciler.result.gap, 'discrepancy')} in {looked}."
            self.stdout.write("\n" + self.style.ERROR(text))
        else:
            text = f"All is accounted for: {looked}."
            self.stdout.write(self.style.SUCCESS(text))

    def _print_finding(self, finding: Mismatch) -> None:
        where = "/".join(name for name in (finding.channel, finding.consumer) if name)
        head = f"{finding.check.value}" + (f" in {where}" if where else "")
        self.stdout.write("\n" + self.style.ERROR(head))
        for line in [
            *textwrap.wrap(finding.sentence, WIDTH),
            *textwrap.wrap(f"-> {finding.remedy}", WIDTH, subsequent_indent="   "),
            *textwrap.wrap(" ".join(finding.ids), WIDTH, break_on_hyphens=False),
        ]:
            self.stdout.write(f"  {line}")
        if finding.count > len(finding.ids):
            self.stdout.write(f"  ... and {finding.count - len(finding.ids):,} more")


def _document(reconciler: Reconciler) -> dict[str, Any]:
    result, config = reconciler.result, reconciler.config
    consumers = []
    for consumer_id, account in sorted(result.accounts.items()):
        consumer = config.consumers.get(consumer_id)
        consumers.append(
            {
                "channel": config.slug(consumer.channel_id) if consumer else "",
                "consumer": consumer.client_id if consumer else f"({consumer_id})",
                "accepted": account.accepted,
                **{state: account.states[state] for state in STATES},
                "missing": account.missing,
            }
        )
    return {
        "gap": result.gap,
        "messages": result.looked["messages"],
        "deliveries": result.looked["deliveries"],
        "channels": [
            {
                "channel": config.slug(channel_id),
                "messages": inflow.states.total(),
                **dict(inflow.states),
                "fanned_out": inflow.recorded,
            }
            for channel_id, inflow in sorted(result.inflow.items())
        ],
        "consumers": consumers,
        "findings": [
            {
                "check": finding.check.value,
                "channel": finding.channel,
                "consumer": finding.consumer,
                "count": finding.count,
                "ids": list(finding.ids),
                "meaning": EXPLANATIONS[finding.check].meaning,
                "way_out": finding.remedy,
            }
            for finding in reconciler.findings()
        ],
    }


def _table(consumers: list[dict[str, Any]]) -> list[str]:
    """Return a line for each consumer: accepted is the sum of the numbers after it."""
    if not consumers:
        return []
    heads = ("accepted", *STATES, "missing")
    rows = [
        [f"{counts['channel']}/{counts['consumer']}", *(f"{counts[head]:,}" for head in heads)]
        for counts in consumers
    ]
    lines = [["", *(head.replace("_", " ") for head in heads)], *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def _wanted(options: dict[str, Any]) -> Wanted:
    channel = consumers = None
    if slug := options["channel"]:
        channel = Channel.objects.filter(slug=slug).first()
        if channel is None:
            raise Error(f"There is no channel {slug!r}.")
    if client_id := options["consumer"]:
        rows = Consumer.objects.filter(client_id=client_id)
        consumers = tuple(rows.filter(channel=channel) if channel else rows)
        if not consumers:
            where = f" on {channel.slug}" if channel else ""
            raise Error(f"There is no consumer {client_id!r}{where}.")
    since, until = options["since"], options["until"]
    if since and until and since >= until:
        raise Error("--since must lie before --until.")
    return Wanted(since, until, channel, consumers, options["grace"])


def _length(text: str) -> timedelta:
    match = LENGTH.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a duration like 90s, 10m, 2h or 7d")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


def _instant(text: str) -> datetime:
    if LENGTH.fullmatch(text):
        return clock.now() - _length(text)
    try:
        instant = parse_datetime(text) or datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None:
        raise ArgumentTypeError(
            f"{text!r} is neither an instant (2026-03-01T08:00:00Z) nor a duration (2h)"
        )
    return instant if instant.tzinfo else timezone.make_aware(instant)
