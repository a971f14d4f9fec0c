"""Compute the high watermark: each row up to this key is readable now or will never exist.

Keys rise with the time at which a process generated them. Their rows are committed a little later,
and in another order. A reader of "all rows up to the highest key" therefore misses every row with a
lower key that commits afterwards. So a reader stops at a key that is old enough: every transaction
that is still open began after this key was generated, with a margin for the time between generating
a key and beginning its transaction.
"""

import logging
from datetime import datetime, timedelta

from pipeline.broker.database import Database

logger = logging.getLogger(__name__)

LIST_RESOLUTION = timedelta(seconds=1)
"""The server's list of transactions has whole seconds."""
LIST_REFRESH = timedelta(milliseconds=100)
"""InnoDB refreshes that list every tenth of a second at most, so it may lack newer transactions."""
FALLBACK_MARGIN = timedelta(minutes=15)
"""Margin where that list cannot be read. No statement of the broker takes a minute."""
NO_PRIVILEGE = 1227
OLDEST_TRANSACTION = (
    "SELECT MAX(TIMESTAMPDIFF(SECOND, trx_started, NOW())) FROM information_schema.innodb_trx "
    "WHERE trx_autocommit_non_locking = 0 AND trx_is_read_only = 0"
)
"""Age of the oldest transaction that may write. The server computes it from its own clock, so
clocks of hosts are never compared."""


def readable_until(database: Database, lag: timedelta) -> datetime:
    """Return an instant: each row whose key was generated before it is readable.

    ``lag`` is the longest time between generating a key and beginning its transaction. Needs the
    privilege PROCESS on MySQL and MariaDB; without it the margin is a quarter of an hour.
    """
    # Before the query: transactions that begin after it can only have newer keys.
    now = database.now()
    if not database.is_mysql:
        return now - lag  # SQLite has one writer at a time, and waits for it less than that.
    try:
        age_s = database.read(OLDEST_TRANSACTION)[0][0]
    except Exception as error:  # by number: SQLite has no such driver
        if error.args[:1] != (NO_PRIVILEGE,):
            raise
        logger.warning("no privilege PROCESS: reading only what is older than %s", FALLBACK_MARGIN)
        return now - max(lag, FALLBACK_MARGIN)
    oldest = timedelta(seconds=int(age_s)) + LIST_RESOLUTION if age_s is not None else LIST_REFRESH
    return now - oldest - lag
