"""High watermark: every row up to this key is either readable now or will never exist.

Keys rise with the time at which a process made them; their rows are committed a little later, and
not in their order. Whoever reads "all rows up to the highest key" skips those for ever that
commit after that. So a reader stops at a key that is old enough: no transaction that is still open
began before it was made, with a span in between for keys that wait until their transaction begins.
"""

import logging
from datetime import datetime, timedelta

from pipeline.broker.database import Database

logger = logging.getLogger(__name__)

WHOLE_SECOND = timedelta(seconds=1)
"""The server's list of transactions has no fractions."""
CACHED = timedelta(milliseconds=100)
"""InnoDB makes that list anew after a tenth of a second at the earliest: it may lack what began
since."""
BLIND = timedelta(minutes=15)
"""The span where that list cannot be read: no statement of the broker takes a minute."""
NO_PRIVILEGE = 1227
OPEN = (
    "SELECT MAX(TIMESTAMPDIFF(SECOND, trx_started, NOW())) FROM information_schema.innodb_trx "
    "WHERE trx_autocommit_non_locking = 0 AND trx_is_read_only = 0"
)
"""Age of the oldest transaction that may write. Their times are the server's own: never compared
with ours."""


def bound(database: Database, lag: timedelta) -> datetime:
    """Rows whose key was made before this instant are all there.

    ``lag`` is the longest time between the making of a key and the beginning of its transaction.
    Needs the privilege PROCESS on MySQL and MariaDB; without it the span is a quarter of an hour.
    """
    # Before the question: what begins after it can only have younger keys.
    now = database.now()
    if not database.is_mysql:
        return now - lag  # SQLite has one writer at a time, and waits for it less than that.
    try:
        age_s = database.read(OPEN)[0][0]
    except Exception as error:  # by its number: the driver is not there on SQLite
        if error.args[:1] != (NO_PRIVILEGE,):
            raise
        logger.warning("no privilege PROCESS: reading only what is older than %s", BLIND)
        return now - max(lag, BLIND)
    oldest = timedelta(seconds=int(age_s)) + WHOLE_SECOND if age_s is not None else CACHED
    return now - oldest - lag
