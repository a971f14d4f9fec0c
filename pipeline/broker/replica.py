"""Replica: rows are read from it when it has all that the broker's own database had at that moment.

The ledger is read where it is written, the rows perhaps from a replica that lags. A row that went
to the lake would count twice, and one that was committed just before the fence not at all. But a
replica repeats commits in their order: where a later heartbeat of the run has come, everything
before it has. While a run is at work nothing is deleted, so once is enough.
"""

import time
from datetime import datetime

from pipeline.broker.database import Database, instant
from pipeline.broker.runs import RUNS, Run
from pipeline.settings import BULK, Settings

CATCH_UP_TIMEOUT_S = 600.0
PAUSE_S = 0.5


class Behind(Exception):
    """The replica is too far behind to be read; the message says how far."""


def catch_up(database: Database, settings: Settings, run: Run) -> None:
    """Wait until bulk reads see what is committed now. Raises Behind, and what a report raises."""
    if settings.bulk_url == settings.database_url:
        return
    now = database.now()
    deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
    replica = Database(settings.bulk_url)
    try:
        while (heard := _heard(replica, run)) is None or heard <= now:
            if time.monotonic() > deadline:
                raise Behind(_explained(database, heard))
            run.report("waiting for the replica")
            time.sleep(PAUSE_S)
    finally:
        replica.close()


def _heard(replica: Database, run: Run) -> datetime | None:
    """The run's last heartbeat that has come there."""
    found = replica.read(f"SELECT heartbeat_at FROM {RUNS} WHERE id = %s", [run.id])
    return instant(found[0][0]) if found and found[0][0] else None


def _explained(database: Database, heard: datetime | None) -> str:
    behind = f"{(database.now() - heard).total_seconds():.0f} s" if heard else "more than this run"
    return (
        f"The database of {BULK} is {behind} behind DATABASE_URL, or no replica of it: rows that "
        "went to the lake would count twice. Run again when it has caught up, or without it."
    )
