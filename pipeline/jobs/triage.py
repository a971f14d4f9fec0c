"""Group dead letters by cause, with what changed at their onset and what to do about them."""

import json
from argparse import ArgumentParser
from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from pipeline.broker.database import Database
from pipeline.contract.jobs import JOBS
from pipeline.core import hours
from pipeline.core.triage import advice, weight
from pipeline.execution import arguments
from pipeline.execution.job import Context, Job, JobError
from pipeline.transforms import dead_letters

DEFAULT_SINCE = "30d"
MAX_ROWS = 500
"""Maximum groups that are stored; the others are only counted."""
MAX_CONSUMERS = 50
"""Maximum consumers stored for a group: those with most of its dead letters."""
MAX_HOST_LENGTH = 255
TABLE = "delivery_deadcluster"
COLUMNS = (
    "place",
    "signature",
    "outcome",
    "status_code",
    "host",
    "shape",
    "dead_count",
    "archived_count",
    "expired_count",
    "consumer_count",
    "consumers",
    "first_seen_at",
    "last_seen_at",
    "began_at",
    "sample_id",
    "story",
    "kind",
    "advice",
    "run_id",
)
Row = dict[str, Any]
DEFAULTS: Row = {
    **dict.fromkeys(("signature", "outcome", "host", "shape", "story", "kind", "advice"), ""),
    **dict.fromkeys(("archived_count", "expired_count"), 0),
}


def add_options(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--since",
        type=arguments.checked(arguments.instant_or_period),
        default=DEFAULT_SINCE,
        metavar="SPAN",
        help="Only deliveries created since then: a day, an instant, or 30d, 12h (default: 30d).",
    )
    parser.add_argument(
        "--until",
        type=arguments.checked(arguments.instant),
        metavar="INSTANT",
        help="Only deliveries created before then (default: now).",
    )


def work(context: Context) -> dict[str, Any]:
    """Group the dead letters, and replace the last run's report."""
    now = context.datasets.readable_until()
    since, until = arguments.time_range(context.options.since, context.options.until, now)
    if since >= until:
        raise JobError("The time ends before it begins.")
    database = context.database
    consumers = known_consumers(database)
    rows = dead_letters.read(
        context.spark,
        context.datasets,
        [(key, row["host"]) for key, row in consumers.items()],
        since,
        until,
        now=now,
        has_lake=context.settings.lake is not None,
    ).persist()
    try:
        context.report("reading dead letters")
        total = rows.count()
        context.report("comparing responses", rows=total)
        clusters = find_clusters(context, rows, consumers, until)
        context.report("reading the history of the consumers", rows=total)
        names = {key: row["name"] for key, row in consumers.items()}
        dead_letters.explain_onsets(
            context.spark,
            context.datasets,
            database,
            context.report,
            rows,
            clusters,
            names,
            (since, until),
        )
    finally:
        rows.unpersist()
    uncounted = total - sum(cluster["dead_count"] for cluster in clusters)
    context.report("writing", rows=total)
    write(context, clusters, uncounted)
    return {
        "dead_letters": total,
        "clusters": len(clusters),
        "left_out": uncounted,
        "since": since.isoformat(),
        "until": until.isoformat(),
    }


JOB = Job("triage", JOBS["triage"].summary, add_options, work)


def known_consumers(database: Database) -> dict[int, Row]:
    """Return the current names and hosts of all consumers."""
    rows = database.read(
        "SELECT c.id, c.channel_id, ch.slug, c.client_id, c.url FROM channels_app_consumer c "
        "JOIN channels_app_channel ch ON ch.id = c.channel_id"
    )
    return {
        key: {"channel": channel, "slug": slug, "name": f"{slug}/{name}", "host": host(url)}
        for key, channel, slug, name, url in rows
    }


def host(url: str) -> str:
    """Return a consumer's host, with the port if the URL names one; '' for a pull consumer."""
    return urlsplit(url).netloc.rpartition("@")[2].lower()[:MAX_HOST_LENGTH]


def find_clusters(
    context: Context, rows: Any, consumers: dict[int, Row], until: datetime
) -> list[Row]:
    """Return the groups, most urgent first, with the deliveries that a replay would take."""
    spark = context.spark
    wanted = dead_letters.most_frequent(rows, MAX_ROWS).persist()
    groups = dead_letters.groups(rows, wanted).toArrow().to_pylist()
    wanted.unpersist()
    filters = [
        tuple(
            group[name]
            for name in (
                *("signature", "consumer_id", "outcome", "status_code"),
                *("accepted_from", "accepted_to"),
            )
        )
        for group in groups
        if group["accepted_from"] is not None
    ]
    taken = {
        (row["signature"], row["consumer_id"]): row["matches"]
        for row in dead_letters.count_matches(spark, rows, filters).toArrow().to_pylist()
    }
    by_kind: dict[str, list[Row]] = defaultdict(list)
    for group in groups:
        group["matches"] = taken.get((group["signature"], group["consumer_id"]), 0)
        by_kind[group["signature"]].append(group)
    return sorted(
        [merge_shares(kind, consumers) for kind in by_kind.values()],
        key=lambda cluster: (
            -weight(cluster["dead_count"], until - cluster["last_seen_at"]),
            cluster["signature"],
        ),
    )


def merge_shares(groups: list[Row], consumers: dict[int, Row]) -> Row:
    """Merge the shares of all consumers into one group."""
    groups.sort(key=lambda group: (-group["dead_count"], group["consumer_id"]))
    first = groups[0]
    guidance = advice(first["outcome"], first["status_code"])
    sample = max(groups, key=lambda group: group["last_seen_at"])
    return {
        **{name: first[name] for name in ("signature", "outcome", "status_code", "shape")},
        "host": first["host"] or "",
        **{
            name: sum(group[name] for group in groups)
            for name in ("dead_count", "archived_count", "expired_count")
        },
        "first_seen_at": min(group["first_seen_at"] for group in groups),
        "last_seen_at": sample["last_seen_at"],
        "began_at": min(group["began_at"] for group in groups),
        "first_consumer": min(groups, key=lambda group: group["began_at"])["consumer_id"],
        "sample_id": sample["sample_id"],
        "consumer_count": len(groups),
        "consumers": [share(group, consumers) for group in groups[:MAX_CONSUMERS]],
        "kind": guidance.kind.value,
        "advice": guidance.text,
        "story": "",
    }


def share(group: Row, consumers: dict[int, Row]) -> Row:
    """Return one consumer's share of a group, with its replay."""
    consumer = consumers.get(group["consumer_id"], {})
    begins, ends = group["accepted_from"], group["accepted_to"]
    return {
        "consumer": group["consumer_id"],
        "channel": consumer.get("channel"),
        "name": consumer.get("name", str(group["consumer_id"])),
        "dead": group["dead_count"],
        # A replay can send those that are still in the tables and have not expired.
        "sendable": group["dead_count"] - group["archived_count"] - group["expired_count"],
        "matches": group["matches"],
        "failing_since": hours.utc(group["began_at"]).isoformat(),
        "begins": begins and text(begins),
        "ends": ends and text(ends + timedelta(microseconds=1)),
    }


def write(context: Context, clusters: list[Row], uncounted: int) -> None:
    """Replace the report in one transaction, so that readers never see a part."""
    rows = [
        [_stored(name, place, cluster, context.run.id) for name in COLUMNS]
        for place, cluster in enumerate(clusters, 1)
    ]
    if uncounted:
        other = {"dead_count": uncounted, "consumers": [], "consumer_count": 0}
        rows.append([_stored(name, len(rows) + 1, other, context.run.id) for name in COLUMNS])
    database = context.database
    holes = ", ".join(["%s"] * len(COLUMNS))
    with database.transaction():
        context.run.require_lock(database)
        database.execute(f"DELETE FROM {TABLE}")
        if rows:
            database.execute_many(
                f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({holes})", rows
            )


def text(at: datetime) -> str:
    """Format an instant as the replay page parses it."""
    return hours.utc(at).isoformat().replace("+00:00", "Z")


def _stored(name: str, place: int, cluster: Row, run_id: int) -> Any:
    value = {"place": place, "run_id": run_id, **DEFAULTS, **cluster}.get(name)
    if name == "consumers":
        return json.dumps(value)
    return hours.utc(value) if isinstance(value, datetime) else value
