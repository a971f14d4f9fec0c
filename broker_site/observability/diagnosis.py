"""Diagnose a running installation, as a list of findings for operators.

System checks (checks.py) check settings; this checks the state: tables, pumps, clocks, disks.
"""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from django.conf import settings
from django.db import Error as DatabaseFailure

from broker_site.observability import backlog, probes
from channels_app.conf import conf, keyring
from channels_app.core import json_schema, recurrence
from channels_app.core.program import typed
from channels_app.database import clock
from channels_app.database.raw import dialect
from channels_app.ingest.storage import disks
from channels_app.models import (
    Consumer,
    EventType,
    Membership,
    MessageBody,
    QuotaUsage,
    Schedule,
)
from channels_app.registry import data_encryption, reencryption
from delivery.core.lifecycle import DeliveryState
from delivery.maintenance import quota_usage, reconciliations
from delivery.models import ConsumerHealth
from delivery.processes import registration

Level = Literal["error", "warning", "info"]
MAX_BODIES_CHECKED = 200
"""How many of the oldest bodies are checked for old encryption keys; rotation begins with these."""
MAX_FACTORS_CHECKED = 1000
"""How many second factors are checked; any old one means that rotate_keys was not run."""
SCHEMAS = 1000
"""How many schemas are checked, oldest first: old ones may exceed today's limits."""
LITTLE_DRIFT_S, MAX_DRIFT_S = 0.05, 1.0
NO_DISK = 100 * 1024**2
PACKET_MARGIN = 64 * 1024
"""Size of a statement that stores a body, without the body, in bytes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result for operators."""

    level: Level
    id: str
    """Stable, for scripts."""
    sentence: str
    hint: str = ""
    """How to solve the problem, if it is one."""


def find() -> list[Finding]:
    """All findings. Without a database, those that do not need it, and that it is unavailable."""
    findings = [*data_dir()]
    try:
        findings += disk()
        outdated = list(migrations())
        findings += outdated
        # Without current tables the other checks would fail.
        for look in () if outdated else CHECKS:
            findings += look()
    except DatabaseFailure as error:
        findings.append(
            Finding(
                "error",
                "database",
                f"The database does not answer: {error}",
                "Check that it runs, and host, port, user and password in DATABASE_URL.",
            )
        )
    return findings


def migrations() -> Iterable[Finding]:
    """Report migrations that are not applied."""
    missing = probes.unapplied_migrations()
    if missing:
        names = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        yield Finding(
            "error",
            "migrations",
            f"{len(missing)} migrations are not applied: {names}.",
            typed("Run `manage.py migrate`."),
        )


def pumps() -> Iterable[Finding]:
    """Report missing pumps."""
    check = probes.pumps()
    if not check.ok:
        yield Finding("error", "pumps", check.detail, check.hint)


def late() -> Iterable[Finding]:
    """Report deliveries that only the broker delays."""
    check = probes.oldest_due()
    if not check.ok:
        yield Finding("warning", "oldest_due", check.detail, check.hint)


def counters() -> Iterable[Finding]:
    """Report counters that do not add up, and dead letters."""
    now = backlog.read()
    if now.gap:
        yield Finding(
            "warning",
            "reconciliation_gap",
            f"The counters of deliveries do not add up: they differ by {now.gap}.",
            "The sweep `counters` corrects them within a minute. If it does not, look at its last "
            "error on the console's page of sweeps.",
        )
    for span, report in reconciliations.newest().items():
        if report.gap:
            yield Finding(
                "warning",
                f"audit_{span}",
                f"The last reconciliation ({span}, {report.finished_at:%Y-%m-%d %H:%M} UTC) found "
                f"{report.gap} discrepancies: {', '.join(sorted(report.checks))}.",
                typed(
                    "Run `manage.py reconcile`: it lists and explains them, and how to fix them."
                ),
            )
    if dead := now.by_state[DeliveryState.DEAD]:
        yield Finding(
            "info",
            "dead_letters",
            f"{dead} deliveries are dead letters.",
            "Replay them in the console, or with POST /api/v1/replays.",
        )


def schedules() -> Iterable[Finding]:
    """Report schedules that are not published in time."""
    overdue = Schedule.objects.filter(next_at__lt=clock.now() - recurrence.GRACE).count()
    if overdue:
        yield Finding(
            "error",
            "schedules_overdue",
            f"{overdue} schedules are overdue by more than a minute.",
            typed(
                "The maintenance process publishes their messages: start `manage.py worker`, or "
                "read its log."
            ),
        )


def durability() -> Iterable[Finding]:
    """Report a server's configuration that may lose committed transactions."""
    if texts := dialect.durability():
        yield Finding("warning", "durability", *texts)


def packets() -> Iterable[Finding]:
    """Report a server's limit that rejects the largest messages."""
    most = dialect.statement_bytes()
    # A byte is sent as two hexadecimal digits.
    needed = 2 * conf().max_body_bytes + PACKET_MARGIN
    if most is not None and most < needed:
        yield Finding(
            "warning",
            dialect.statement_setting,
            f"The database accepts statements of up to {most} bytes. A message of "
            f"HOOKSTATION_MAX_BODY_BYTES needs {needed}, and is refused with 503.",
            f"Set {dialect.statement_setting} to {-(-needed // 1024**2)}M in the server's "
            "configuration, or lower HOOKSTATION_MAX_BODY_BYTES.",
        )


def consumers() -> Iterable[Finding]:
    """Report disabled consumers and open circuits."""
    disabled = Consumer.objects.filter(state=Consumer.State.DISABLED).count()
    if disabled:
        yield Finding(
            "info",
            "consumers_disabled",
            f"{disabled} consumers are disabled; their messages wait.",
            "Each consumer's page shows the reason; resume it there when its cause is fixed.",
        )
    failing = ConsumerHealth.objects.exclude(circuit=ConsumerHealth.Circuit.CLOSED)
    if count := failing.exclude(consumer__state=Consumer.State.RETIRED).count():
        yield Finding(
            "info",
            "circuits_open",
            f"{count} consumers keep failing: their circuits are open, and the broker only probes "
            "them.",
            "The console's list of consumers shows which fail, and since when.",
        )


def event_types() -> Iterable[Finding]:
    """Report stored schemas that are no longer valid, whose messages are rejected."""
    rows = EventType.objects.exclude(schema=None).select_related("channel").order_by("pk")
    bad = [row for row in rows[:SCHEMAS] if json_schema.compiled(row.schema).validator is None]
    if bad:
        names = ", ".join(f"{row.channel.slug}/{row.name}" for row in bad[:5])
        names += ", …" if len(bad) > 5 else ""
        yield Finding(
            "warning",
            "event_type_schemas",
            f"{len(bad)} event types have a schema that cannot be applied: {names}.",
            "Messages of these types are refused with 422. Send the schema again: the response "
            "says what is wrong with it.",
        )


def mail() -> Iterable[Finding]:
    """Report missing mail if there are people who need it."""
    if not settings.CAN_MAIL and Membership.objects.exists():
        yield Finding(
            "info",
            "no_mail",
            "EMAIL_URL is not set: links for new passwords are only written to the log.",
            "Set EMAIL_URL, or pass invitation links on yourself.",
        )


def encryption() -> Iterable[Finding]:
    """Report processes without a needed key, unfinished rotations, and rows with old keys."""
    if refusal := data_encryption.refusal():
        yield Finding("error", "encryption_key", refusal, "Then start the processes here again.")
        return
    primary = data_encryption.encrypting_key_id()
    for holder in registration.holders():
        if holder.lacks(primary):
            gone = ", ".join(sorted(holder.missing | ({primary} - holder.keys)))
            yield Finding(
                "error",
                "process_keys",
                f"{holder.name} lacks encryption keys ({gone}) and cannot decrypt their data.",
                "Add them to its HOOKSTATION_ENCRYPTION_KEYS and restart it.",
            )
    if keyring().primary_id != primary:
        yield Finding(
            "info",
            "key_not_rotated",
            f"The first encryption key here is {keyring().primary_id}, but {primary} still "
            "encrypts.",
            typed("When every process has read the new key, run `manage.py rotate_keys`."),
        )
    oldest = MessageBody.objects.order_by("pk").values_list("key_id", flat=True)[
        :MAX_BODIES_CHECKED
    ]
    used = {*oldest, *reencryption.used_keys(MAX_FACTORS_CHECKED)}
    if old := sorted(used - {"", primary}):
        yield Finding(
            "warning",
            "key_rotation",
            f"Rows are still encrypted with former encryption keys ({', '.join(old)}).",
            typed(
                "Keep those keys in HOOKSTATION_ENCRYPTION_KEYS, run `manage.py rotate_keys`, and "
                "only then remove them."
            ),
        )


def clocks() -> Iterable[Finding]:
    """Report a difference between this host's clock and the database's."""
    drift_s = clock.offset().least_s
    if drift_s > LITTLE_DRIFT_S:
        yield Finding(
            "warning" if drift_s > MAX_DRIFT_S else "info",
            "clock",
            f"The clocks of this host and of the database differ by {drift_s:.2f} s.",
            "Synchronise both (chrony, systemd-timesyncd). Ids contain this host's time, and "
            "beyond HOOKSTATION_MAX_CLOCK_OFFSET_S its pumps claim nothing.",
        )


def limits() -> Iterable[Finding]:
    """Report channels and teams near or at a limit."""
    for row in (
        QuotaUsage.objects.exclude(level=QuotaUsage.Level.OK)
        .exclude(scope=QuotaUsage.Scope.DISK)
        .order_by("scope", "owner_id")
    ):
        name = quota_usage.name_of(row)
        is_full = row.level == QuotaUsage.Level.FULL
        yield Finding(
            "error" if is_full else "warning",
            f"quota_{row.scope}",
            f"{row.messages:,} messages ({row.bytes // 1024**2:,} MiB) wait in the {name}: "
            + ("more are refused." if is_full else "more than 80 % of the limit."),
            "Find the consumer that they wait for, and fix or retire it. Or raise the limit.",
        )


def disk() -> Iterable[Finding]:
    """Report low disk space for messages."""
    for room in disks.rooms():
        if room.is_low or room.is_short:
            yield Finding(
                "error" if room.is_short or room.free < NO_DISK else "warning",
                "disk",
                f"{room.free // 1024**2} MiB are free in {room.folder}.",
                "Free space, or keep messages for a shorter time (HOOKSTATION_RETENTION_DAYS): "
                "below HOOKSTATION_DISK_RESERVE_BYTES the broker accepts no message.",
            )


def data_dir() -> Iterable[Finding]:
    """Report a data directory that is not writable."""
    try:
        with tempfile.TemporaryFile(dir=settings.DATA_DIR):
            return
    except OSError as error:
        reason = error.strerror
    yield Finding(
        "error",
        "data_dir",
        f"Files cannot be created in {settings.DATA_DIR}: {reason}.",
        "Give the broker's user write permission there, or set HOOKSTATION_DATA_DIR.",
    )


CHECKS: tuple[Callable[[], Iterable[Finding]], ...] = (
    pumps,
    late,
    counters,
    schedules,
    durability,
    packets,
    consumers,
    event_types,
    mail,
    encryption,
    clocks,
    limits,
)
"""Checks that read tables."""
