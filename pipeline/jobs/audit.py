"""Check that every accepted message is accounted for, in the lake and the tables together.

It runs the checks of the broker's own reconciliation, under the same names and with the same
exceptions, and looks for rows that the archive doubled. Checks of the present state (counters,
leases, late deliveries) remain with the broker.
"""

import json
from argparse import ArgumentParser
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.broker import directory, tables
from pipeline.broker.database import Database, instant
from pipeline.contract.jobs import JOBS
from pipeline.contract.results import CHECKS
from pipeline.execution import arguments
from pipeline.execution.job import Context, Job, JobError
from pipeline.transforms import reconcile
from pipeline.transforms.reconcile import Reconciliation, Scope

GRACE = timedelta(minutes=5)
MAX_BY_HOUR = timedelta(days=8)
"""Longest range that is reported by hour; longer ones are reported by day."""
SAMPLE_IDS = 10
"""Ids that each finding names."""
MAX_ROWS = 5000
"""Findings that are stored. The number of wrong rows covers all of them."""
MAX_AUDITS = 200
"""Audits that are kept."""
HOUR_MS = 3_600_000
AUDITS, FINDINGS = "delivery_lakeaudit", "delivery_lakefinding"


@dataclass(slots=True)
class AuditResult:
    """The result of an audit."""

    checks: dict[str, int]
    spans: list[list[Any]]
    """Beginning of each hour or day, number of its messages and of their deliveries."""
    attempts: int
    findings: list[tuple[str, int, int, datetime, int, list[str]]] = field(default_factory=list)
    """Check, channel, consumer, hour, number, ids."""


def add_options(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--since", metavar="WHEN", help=f"Only messages accepted since then: {arguments.WHEN}."
    )
    parser.add_argument("--until", metavar="WHEN", help="Only messages accepted before then.")
    parser.add_argument(
        "--grace",
        metavar="TIME",
        help="Ignore messages newer than this, and smaller differences between clocks "
        "(default: 5m).",
    )
    parser.add_argument(
        "--whole-since",
        metavar="WHEN",
        help="Since when rows are deleted only after they were archived: a message accepted later "
        "must be in lake or tables (default: when the archive planned its first segment).",
    )


def work(context: Context) -> dict[str, Any]:
    """Audit, and store the findings."""
    began = context.database.now()
    since, scope, grace = _scope(context, began)
    context.report("reading channels and consumers")
    consumers = directory.read(context.database, grace)
    reconciliation = Reconciliation(context.spark, context.datasets, consumers, scope)
    try:
        result = _scan(context, reconciliation, scope)
    finally:
        reconciliation.unpersist()
    until = tables.created_at(scope.high)
    _store(context, result, began, since, until)
    messages, deliveries = (sum(row[place] for row in result.spans) for place in (1, 2))
    return {
        "until": until.isoformat(),
        "messages": messages,
        "deliveries": deliveries,
        "attempts": result.attempts,
        "gap": sum(result.checks.values()),
        **{name: number for name, number in result.checks.items() if number},
    }


def _scope(context: Context, now: datetime) -> tuple[datetime | None, Scope, timedelta]:
    wanted = context.options
    grace = arguments.period(wanted.grace) if wanted.grace else GRACE
    since = arguments.instant_or_ago(wanted.since, now) if wanted.since else None
    latest = min(context.datasets.readable_until(), now - grace)
    until = min(arguments.instant_or_ago(wanted.until, now), latest) if wanted.until else latest
    if since and since >= until:
        raise JobError(f"There is nothing to audit: all is there only up to {until.isoformat()}.")
    low = tables.first_key(since) if since else 0
    text = wanted.whole_since
    whole = arguments.instant_or_ago(text, now) if text else _archive_start(context.database)
    whole_from = tables.first_key(whole) if whole else tables.LARGEST_KEY
    return since, Scope(low, tables.first_key(until), now, now - grace, whole_from), grace


def _archive_start(database: Database) -> datetime | None:
    """Return when the archive began: since then retention deletes nothing."""
    first = database.read("SELECT MIN(planned_at) FROM delivery_segment")[0][0]
    return instant(first) if first is not None else None


def _scan(context: Context, reconciliation: Reconciliation, scope: Scope) -> AuditResult:
    steps = 5
    context.report("deliveries and their attempts", 1, steps)
    counted = reconciliation.deliveries.agg(
        f.count("id"), f.coalesce(f.sum("attempt_rows"), f.lit(0))
    ).first()
    assert counted is not None
    context.report("messages and their deliveries", 2, steps, counted[0] + counted[1])
    spans = _spans(context, reconciliation, scope)
    rows = counted[0] + counted[1] + sum(row[1] for row in spans)
    context.report("comparing expected and actual rows", 3, steps, rows)
    suspected = reconciliation.findings().repartition(context.settings.partitions)
    confirmed = suspected.mapInArrow(reconcile.recheck, from_arrow_schema(reconcile.FINDING_SCHEMA))
    confirmed = confirmed.persist(StorageLevel.DISK_ONLY)
    try:
        numbers = {row["name"]: row["count"] for row in confirmed.groupBy("name").count().collect()}
        context.report("collecting findings", 4, steps, rows)
        checks = {name: numbers.get(name, 0) for name in CHECKS}
        findings = _findings(confirmed) if any(checks.values()) else []
        return AuditResult(checks, spans, counted[1], findings)
    finally:
        confirmed.unpersist()


def _spans(context: Context, reconciliation: Reconciliation, scope: Scope) -> list[list[Any]]:
    stored = reconciliation.messages.where("known")
    first = stored.agg(f.min("key")).first()
    low = first[0] if first and first[0] is not None else scope.high
    length = tables.created_at(scope.high) - tables.created_at(low)
    hours = 1 if length <= MAX_BY_HOUR else 24
    rows = stored.groupBy(_hour("key", hours).alias("hour")).agg(f.count("*"), f.sum("made"))
    return [
        [_at(hour * hours).isoformat(), messages, deliveries]
        for hour, messages, deliveries in sorted(rows.collect())
    ]


def _findings(findings: DataFrame) -> list[tuple[str, int, int, datetime, int, list[str]]]:
    place = ["name", "channel_id", "consumer_id", "hour"]
    rows = findings.withColumn("hour", _hour("owner", 1))
    window = Window.partitionBy(*place)
    rows = rows.withColumn("number", f.count("*").over(window))
    rows = rows.withColumn("rank", f.row_number().over(window.orderBy("key")))
    rows = (
        rows.where(f.col("rank") <= SAMPLE_IDS).orderBy(*place, "rank").limit(MAX_ROWS * SAMPLE_IDS)
    )
    groups: dict[tuple[Any, ...], tuple[int, list[str]]] = {}
    for row in rows.toLocalIterator():
        group = tuple(row[name] for name in place)
        _, names = groups.setdefault(group, (row["number"], []))
        names.append(tables.public_id(row["prefix"], row["key"]))
        if len(groups) > MAX_ROWS:
            del groups[group]
            break
    return [
        (name, channel, consumer, _at(hour), number, names)
        for (name, channel, consumer, hour), (number, names) in groups.items()
    ]


def _hour(key: str, hours: int) -> Any:
    """Return the number of hours or days since time zero of keys."""
    ms = f.shiftright(f.col(key), tables.TIME_SHIFT)
    return f.floor(ms / f.lit(hours * HOUR_MS)).cast("bigint")


def _at(hour: int) -> datetime:
    return (tables.EPOCH + timedelta(hours=hour)).astimezone(UTC)


def _store(
    context: Context, result: AuditResult, began: datetime, since: datetime | None, until: datetime
) -> None:
    """Store the audit in one transaction, and delete the oldest audits."""
    database, run = context.database, context.run
    context.report("storing the findings", 5, 5)
    messages, deliveries = (sum(row[place] for row in result.spans) for place in (1, 2))
    with database.transaction():
        run.require_lock(database)
        audit = database.insert(
            f"INSERT INTO {AUDITS} (run_id, since, until, started_at, finished_at, message_count, "
            "delivery_count, attempt_count, gap, checks, spans) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            [
                *(run.id, since, until, began, database.now(), messages, deliveries),
                *(result.attempts, sum(result.checks.values())),
                *(json.dumps(result.checks), json.dumps(result.spans)),
            ],
        )
        database.execute_many(
            f"INSERT INTO {FINDINGS} (audit_id, check_name, channel_id, consumer_id, hour, count, "
            "ids) VALUES (%s, %s, %s, %s, %s, %s, %s)",
            [
                (audit, name, channel, consumer, hour, number, json.dumps(names))
                for name, channel, consumer, hour, number, names in result.findings
            ],
        )
        kept = database.read(f"SELECT id FROM {AUDITS} ORDER BY id DESC LIMIT {MAX_AUDITS}")
        for table, key in ((FINDINGS, "audit_id"), (AUDITS, "id")):
            database.execute(f"DELETE FROM {table} WHERE {key} < %s", [kept[-1][0]])


JOB = Job(
    "audit",
    JOBS["audit"].summary,
    add_options,
    work,
    finding="gap",
)
