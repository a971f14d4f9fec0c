"""Wait until the replica has everything that was committed in the primary database.

The ledger is read from the primary, and rows perhaps from a replica that lags. A row that moved to
the lake would then count twice, and one that was committed just below the high watermark not at
all. A replica applies commits in their order: once a later heartbeat of the run is there, every
commit before it is there too. Nothing is deleted while a run is active, so waiting once is enough.
"""

import time
from datetime import datetime

from pipeline.broker.database import Database, instant
from pipeline.broker.runs import RUNS, Run
from pipeline.settings import READ_URL, Settings

CATCH_UP_TIMEOUT_S = 600.0
PAUSE_S = 0.5


class ReplicaLag(Exception):
    """The replica is too far behind; the message says how far."""


def catch_up(database: Database, settings: Settings, run: Run) -> None:
    """Wait until bulk reads see what is committed now.

    Raises ReplicaLag, RunCancelled or LockLost.
    """
    if settings.read_url == settings.database_url:
        return
    now = database.now()
    deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
    replica = Database(settings.read_url)
    try:
        while (heartbeat := _replica_heartbeat(replica, run)) is None or heartbeat <= now:
            if time.monotonic() > deadline:
                raise ReplicaLag(_lag_message(database, heartbeat))
            run.report("waiting for the replica")
            time.sleep(PAUSE_S)
    finally:
        replica.close()


def _replica_heartbeat(replica: Database, run: Run) -> datetime | None:
    """Return the latest heartbeat of the run that the replica has."""
    rows = replica.read(f"SELECT heartbeat_at FROM {RUNS} WHERE id = %s", [run.id])
    return instant(rows[0][0]) if rows and rows[0][0] else None


def _lag_message(database: Database, heartbeat: datetime | None) -> str:
    lag = (
        f"{(database.now() - heartbeat).total_seconds():.0f} s"
        if heartbeat
        else "more than this run"
    )
    return (
        f"The database of {READ_URL} is {lag} behind DATABASE_URL, or no replica of it: rows that "
        "went to the lake would count twice. Run again when it has caught up, or without it."
    )
