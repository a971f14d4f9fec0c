"""Collect facts about the onset of each group of dead letters."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame

from pipeline.broker.database import Database, instant
from pipeline.core.hours import utc
from pipeline.core.triage import NEAR, Change, History, OnsetFacts, explain_onset
from pipeline.execution.job import Context
from pipeline.transforms import deadletters

MAX_CHANGES = 200
"""Groups, the first ones, whose onset is explained."""
MAX_CHANGES = 20
Row = dict[str, Any]


def tell(
    context: Context,
    rows: DataFrame,
    found: list[Row],
    names: Mapping[int, str],
    window: tuple[datetime, datetime],
) -> None:
    """Explain the onset of the first groups."""
    first = found[:MAX_CHANGES]
    if not first:
        return
    beginnings = [(it["signature"], it["first_consumer"], it["began_at"]) for it in first]
    spark = context.spark
    before = deadletters.before(spark, context.frames, beginnings, *window)
    past = {row["signature"]: row for row in before.toArrow().to_pylist()}
    died = {
        row["kind"]: utc(row["last_dead_at"])
        for row in deadletters.died_before(spark, rows, beginnings).toArrow().to_pylist()
    }
    failing = _failing_since(found)
    for place, cluster in enumerate(first):
        context.report("asking what changed", place, len(first))
        whose = cluster["first_consumer"]
        name = names.get(whose, str(whose))
        began = utc(cluster["began_at"])
        same_host = failing.get(cluster["host"], {}) if cluster["host"] else {}
        cluster["story"] = explain_onset(
            OnsetFacts(
                consumer=name,
                began_at=began,
                changes=_changes(context.database, name, began),
                neighbours=sorted((one, at) for one, at in same_host.items() if one != name),
                before=_before(past.get(cluster["signature"]), died.get(cluster["signature"])),
            )
        )


def _failing_since(found: Iterable[Row]) -> dict[str, dict[str, datetime]]:
    """Return by host when each of its consumers began to fail in any way."""
    hosts: dict[str, dict[str, datetime]] = defaultdict(dict)
    for cluster in found:
        known = hosts[cluster["host"]]
        for part in cluster["consumers"]:
            at = datetime.fromisoformat(part["failing_since"])
            known[part["name"]] = min(at, known.get(part["name"], at))
    return hosts


def _changes(database: Database, name: str, began_at: datetime) -> list[Change]:
    """Return changes of a consumer and its channel in the day before the onset, newest first."""
    found = []
    for target in (f"consumer:{name}", f"channel:{name.partition('/')[0]}"):
        rows = database.read(
            "SELECT at, actor, action, after FROM channels_app_auditentry "
            "WHERE target = %s AND at >= %s AND at <= %s ORDER BY id DESC LIMIT %s",
            [target, began_at - NEAR, began_at, MAX_CHANGES],
        )
        for at, actor, action, after in rows:
            fields = json.loads(after) if after and action.endswith(".update") else None
            names = tuple(sorted(fields)) if isinstance(fields, dict) else ()
            found.append(Change(instant(at), actor, action, target.partition(":")[2], names))
    return found


def _before(past: Row | None, last_dead_at: datetime | None) -> History:
    if past is None:
        return History(last_dead_at=last_dead_at)
    last = past["last"]
    return History(
        arrived_count=past["arrived_count"],
        since=utc(past["since"]),
        last_outcome=last["outcome"],
        last_status=last["status_code"],
        last_dead_at=last_dead_at,
    )
