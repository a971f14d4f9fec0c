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

FALLBACK_MARGIN = timedelta(minutes=15)
"""Margin where their ages cannot be read. No statement of the broker takes a minute."""


def readable_until(database: Database, lag: timedelta) -> datetime:
    """Return an instant: each row whose key was generated before it is readable.

    ``lag`` is the longest time between generating a key and beginning its transaction. Needs the
    privilege PROCESS on MySQL and MariaDB; without it the margin is a quarter of an hour.
    """
    # Before the query: transactions that begin after it can only have newer keys.
    now = database.now()
    oldest = database.dialect.oldest_transaction(database)
    if oldest is None:
        logger.warning("no privilege PROCESS: reading only what is older than %s", FALLBACK_MARGIN)
        return now - max(lag, FALLBACK_MARGIN)
    return now - oldest - lag
