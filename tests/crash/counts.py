"""Read the broker's counters and rows directly from its tables while it runs."""

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit

from tests.support.broker import Broker, lives, wait_until

with suppress(ImportError):  # without the driver only SQLite is tested
    import MySQLdb

STATES = "SELECT consumer_id, state, COUNT(*) FROM delivery_delivery GROUP BY consumer_id, state"
COUNTED = (
    "SELECT consumer_id, state, SUM(count) FROM delivery_counter "
    "GROUP BY consumer_id, state HAVING SUM(count) <> 0"
)
MISSING_ATTEMPTS = (
    "SELECT delivery.id FROM delivery_delivery AS delivery "
    "LEFT JOIN delivery_attempt AS attempt ON attempt.delivery_id = delivery.id "
    "GROUP BY delivery.id, delivery.attempt_count "
    "HAVING COUNT(attempt.id) <> delivery.attempt_count"
)

OPEN_TRANSACTIONS = (
    "SELECT COUNT(*) FROM information_schema.innodb_trx AS open "
    "JOIN information_schema.processlist AS thread ON thread.id = open.trx_mysql_thread_id "
    "WHERE thread.db = DATABASE()"
)
LOCKED_S = 5.0
SETTLED_S = 300.0


class Counts:
    """Queries on the tables of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._url = broker.environment["DATABASE_URL"]
        self._log = broker.log

    def read(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """Return all rows of a query on a new connection."""
        at = urlsplit(self._url)
        if at.scheme == "sqlite":
            path = self._url.removeprefix("sqlite:///").partition("?")[0]
            with closing(sqlite3.connect(path)) as connection:
                return connection.execute(sql).fetchall()
        database = MySQLdb.connect(
            host=at.hostname,
            port=at.port,
            user=at.username,
            password=at.password,
            database=at.path.lstrip("/"),
        )
        with closing(database) as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def is_unlocked(self) -> bool:
        """Whether no stopped process holds a lock; running ones release theirs within seconds."""
        if urlsplit(self._url).scheme != "sqlite":
            end = time.monotonic() + LOCKED_S
            while self.number(OPEN_TRANSACTIONS):
                if time.monotonic() > end:
                    return False
                time.sleep(0.2)  # the server refreshes this table every 0.1 s
            return True
        path = self._url.removeprefix("sqlite:///").partition("?")[0]
        with closing(sqlite3.connect(path, timeout=LOCKED_S, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            connection.execute("ROLLBACK")
            return True

    def number(self, sql: str) -> int:
        """Return the single number that a query selects."""
        ((found,),) = self.read(sql)
        return int(found or 0)

    def living(self, kind: str) -> list[int]:
        """Process ids of this kind that live, of all hosts; dead ones may still be registered."""
        rows = self.read("SELECT kind, pid FROM delivery_pumpslot")
        return [int(pid) for held_as, pid in rows if held_as == kind and lives(int(pid))]

    def open_count(self) -> int:
        """Count messages that wait for their fan-out and deliveries that are not final."""
        waiting = self.number("SELECT COUNT(*) FROM channels_app_message WHERE state = 'accepted'")
        return waiting + self.number(
            "SELECT COUNT(*) FROM delivery_delivery "
            "WHERE state NOT IN ('delivered', 'dead', 'cancelled')"
        )

    def audited(self, target: str) -> list[str]:
        """The actions on an object in the audit log, without views of it."""
        rows = self.read("SELECT action, target FROM channels_app_auditentry ORDER BY id")
        actions = [str(action) for action, at in rows if at == target]
        return [action for action in actions if not action.endswith(".open")]

    def message_count(self, channel: str) -> int:
        """How many messages are stored in a channel."""
        counts = self.read(
            "SELECT channel.slug, COUNT(*) FROM channels_app_message AS message "
            "JOIN channels_app_channel AS channel ON channel.id = message.channel_id "
            "GROUP BY channel.slug"
        )
        return int(dict(counts).get(channel, 0))

    def settle(self) -> None:
        """Wait until no message and no delivery is open, and check them all."""
        wait_until(lambda: not self.open_count(), SETTLED_S, "rows stay open", self._log)
        self.check()

    def check(self) -> None:
        """Check that every delivery is final, all counters are right, and no failure is charged."""
        assert self.open_count() == 0
        rows = {(owner, state): int(count) for owner, state, count in self.read(STATES)}
        counted = {(owner, state): int(count) for owner, state, count in self.read(COUNTED)}
        made: dict[Any, int] = {}
        for (owner, _), count in rows.items():
            made[owner] = made.get(owner, 0) + count
        assert counted == rows | {(owner, "made"): count for owner, count in made.items()}
        assert self.read(MISSING_ATTEMPTS) == self.read("SELECT 1 WHERE 1 = 0")
        charged = self.read(
            "SELECT attempt_count, outcome FROM delivery_delivery WHERE failure_count > 0"
        )
        assert not charged, f"failures are charged: {charged}"
