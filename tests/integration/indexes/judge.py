"""Checks the queries of a block by their plans and the number of rows that they read.

Queries that share a round trip are checked one by one before they run together.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from django.db import connection

from tests.support.waiting import until

LARGE = {
    "channels_app_auditentry",
    "channels_app_idempotencyrecord",
    "channels_app_message",
    "channels_app_messagebody",
    "delivery_attempt",
    "delivery_correlation",
    "delivery_delivery",
    "delivery_replay",
}
FACTOR = 4
"""Rows read per returned row and per value or term in the statement. A list that shows the channel,
producer and consumer of each row reads four rows for one."""
CONSTANT = 200
"""Rows that any statement may read in addition. The large tables hold thousands."""
PATIENCE_S = 120.0
"""Seconds to wait until the server has purged deleted rows from its indexes. That is usually quick,
unless the server is busy; an open transaction of another session can delay it forever."""
_NUMBER = re.compile(r"\b\d+\b")


@dataclass(slots=True)
class Judge:
    """The faults found, and the number of statements on large tables that were checked."""

    where: str = ""
    """Name of the current request, for messages."""
    faults: list[str] = field(default_factory=list)
    seen: int = 0
    explained: set[str] = field(default_factory=set)
    """Statements whose plan was read: on SQLite it does not depend on the values."""
    is_patient: bool = True
    """False once waiting did not help: rows that await the purge do not explain the fault."""

    def __call__(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        if not is_judged(sql):
            return execute(sql, params, many, context)
        if len(parts := sql.split("; ")) > 1 and all(it.startswith("SELECT") for it in parts):
            values = list(params)
            for part in parts:
                count = part.count("%s")
                self(execute, part, values[:count], many, context)
                del values[:count]
            return execute(sql, params, many, context)
        self.seen += 1
        if connection.vendor != "mysql" and sql in self.explained:
            return execute(sql, params, many, context)
        self.explained.add(sql)
        for fault in plan_faults(sql, params):
            self.faults.append(f"{self.where}: {fault}: {_short(sql)}")
        asked = len(params or ()) + len(_NUMBER.findall(sql)) + sql.count("SELECT ")
        is_read = sql.lstrip().startswith(("SELECT", "WITH"))
        answer, count, rows = None, 0, 0
        purged = not (is_read and self.is_patient)

        def is_cheap() -> bool:
            nonlocal answer, count, rows
            before = reads()
            answer = execute(sql, params, many, context)
            count = reads() - before
            rows = max(0, int(context["cursor"].rowcount))
            return count <= FACTOR * (rows + asked) + CONSTANT

        def is_decided() -> bool:
            nonlocal purged
            if is_cheap() or purged:
                return True
            # A deleted row stays in the indexes and is read until the server has purged it.
            purged = is_purged()
            return False

        with suppress(AssertionError):  # somebody's open transaction still delays the purge
            until(is_decided, "the rows are purged", PATIENCE_S)
        if count > FACTOR * (rows + asked) + CONSTANT:
            self.is_patient = False
            plan = [
                {name: row[name] for name in ("table", "type", "key", "key_len", "Extra")}
                for row in explained(f"EXPLAIN {sql}", params)
            ]
            fault = f"read {count} rows to return {rows} by {plan[:3]}"
            self.faults.append(f"{self.where}: {fault}: {_short(sql)}")
        return answer

    def accept(self) -> None:
        """Fail with all faults."""
        assert self.seen
        assert not self.faults, "\n\n".join(dict.fromkeys(self.faults))


@contextmanager
def judging() -> Iterator[Judge]:
    """Judge every statement of the block; call ``accept`` after it."""
    judge = Judge()
    with connection.execute_wrapper(judge):
        yield judge


def is_judged(sql: str) -> bool:
    """Return whether the statement reads one of the large tables."""
    words = set(re.findall(r"\w+", sql))
    return bool(words & LARGE) and sql.lstrip().startswith(("SELECT", "UPDATE", "DELETE", "WITH"))


def plan_faults(sql: str, params: Any) -> Iterator[str]:
    """Yield the faults of the database's query plan."""
    if connection.vendor != "mysql":
        for detail in explained(f"EXPLAIN QUERY PLAN {sql}", params):
            text = str(detail["detail"])
            # Without a limit every sorted row is returned.
            if "USE TEMP B-TREE" in text and "LIMIT" in sql and not _sorts_little(sql):
                yield text
            # In index order and with a limit it is not a full scan.
            if text.startswith("SCAN") and _table(text) in LARGE and "LIMIT" not in sql:
                yield text
        return
    for row in explained(f"EXPLAIN {sql}", params):
        extra, table = row["Extra"] or "", row["table"] or ""
        if table.startswith("<"):
            continue  # merged rows of ranges; the number of rows read is checked separately
        # A table from which most rows were deleted may be smaller than the list of keys.
        # MySQL calls a scan in the order of the primary key that, too, which a limit ends.
        scans = row["type"] == "ALL" and table in LARGE and not sql.startswith("DELETE")
        scans = scans and "LIMIT" not in sql
        if "filesort" in extra or "temporary" in extra or scans:
            yield f"{row['type']} of {table} by {row['key']}, {extra}"


def reads() -> int:
    """Return the rows that this session has read so far, 0 on databases without such a counter."""
    if connection.vendor != "mysql":
        return 0
    connection.ensure_connection()
    assert connection.connection is not None
    with connection.connection.cursor() as cursor:
        # Rows rejected by an index condition have a counter of their own.
        cursor.execute(
            "SHOW SESSION STATUS WHERE Variable_name LIKE 'Handler_read%' "
            "OR Variable_name = 'Handler_icp_attempts'"
        )
        found = dict(cursor.fetchall())
    return sum(int(value) for name, value in found.items() if not name.endswith("_deleted"))


def is_purged() -> bool:
    """Return whether the server has purged all deleted rows from its indexes.

    Only MariaDB counts them as read until then.
    """
    if not getattr(connection, "mysql_is_mariadb", False):
        return True
    assert connection.connection is not None
    with connection.connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'")
        return int(cursor.fetchone()[1]) == 0


def explained(sql: str, params: Any) -> list[dict[str, Any]]:
    """Return the rows of an EXPLAIN statement by column, whichever format the server prefers."""
    connection.ensure_connection()
    assert connection.connection is not None
    # Bypasses Django's cursor: otherwise this statement would be judged too.
    cursor = connection.connection.cursor()
    if connection.vendor == "mysql":
        if not getattr(connection, "mysql_is_mariadb", False):
            cursor.execute("SET SESSION explain_format = 'TRADITIONAL'")  # MySQL 9: TREE
        cursor.execute(sql, params)
    else:
        holes = sql.replace("%s", "?").replace("%%", "%") if params else sql
        cursor.execute(holes, params or ())
    names = [column[0] for column in cursor.description]
    found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    cursor.close()
    return found


def _sorts_little(sql: str) -> bool:
    """Return whether a limit applies before the sort.

    That is true of merged ranges, of a single range, and of a slice that is aggregated.
    """
    cut = r"LIMIT %s\s*\) AS (?:slice\s+(?:LEFT JOIN [^()]+\s)?GROUP BY|t0 )"
    return "UNION ALL" in sql or re.search(cut, sql) is not None


def _table(plan: str) -> str:
    return plan.split()[1]


def _short(sql: str) -> str:
    return sql if len(sql) < 1500 else f"{sql[:1000]} ... {sql[-400:]}"
