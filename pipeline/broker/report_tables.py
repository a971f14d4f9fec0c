"""Replace the rows of a report table at once, so that readers never see a part."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pipeline.broker.database import Database

CHUNK = 2000


def replace(
    database: Database,
    table: str,
    column: str,
    since: datetime | str,
    until: datetime | str,
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> None:
    """Replace the rows from ``since`` up to ``until`` with these, inside a transaction."""
    database.execute(f"DELETE FROM {table} WHERE {column} >= %s AND {column} < %s", [since, until])
    holes = ", ".join(["%s"] * len(names))
    sql = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({holes})"
    for start in range(0, len(rows), CHUNK):
        database.execute_many(sql, rows[start : start + CHUNK])
