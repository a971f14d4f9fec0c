"""Define the question that each job answers, and equivalent queries for MariaDB and DuckDB.

The queries compute only the main result: they write no report, and compare or verify nothing.
DuckDB gets the columns that it needs through connectorx, the driver that the jobs use:
`python -m bench.pipeline.queries NAME FOLDER`, a process of its own, to measure its memory.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import connectorx
import duckdb

MESSAGES, DELIVERIES, ATTEMPTS = "channels_app_message", "delivery_delivery", "delivery_attempt"
ARRIVED = "a.outcome IN ('delivered', 'delivered_oversized')"
DELIVERED_TO = f"{ATTEMPTS} a JOIN {DELIVERIES} d ON d.id = a.delivery_id"
OF_MESSAGES = f"JOIN {MESSAGES} m ON m.id = d.message_id"
SHARES = (0.5, 0.95, 0.99)
WEEKS = 28
DUCKDB_CONNECTIONS = 2
"""Connections that read a table at once."""
LAST_DAYS = "INTERVAL 9 DAY"
"""Days that `health` reads: yesterday, today, and the week before yesterday."""


@dataclass(frozen=True, slots=True)
class Question:
    """A job or another command, with the equivalent queries."""

    name: str
    title: str
    command: Sequence[str]
    """Words after ``python -m``."""
    reads: Sequence[str]
    """Tables whose rows it covers."""
    share: float = 1.0
    """Share of these rows that it covers."""
    mariadb: Sequence[str] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns of each table for DuckDB: a list of columns, and a condition after WHERE."""
    duckdb: Sequence[str] = ()
    writes_lake: bool = False
    """It starts with an empty lake and fills it; the others have none, or the full one."""
    reads_lake: bool = False
    starts_cold: bool = False
    """The server's buffer pool has next to nothing of the tables when the job begins, at any
    size."""


def _hour(column: str) -> str:
    return f"{column} DIV 10000"


def _duck_hour(column: str) -> str:
    return f"date_trunc('hour', {column})"


def _percentiles(hour: str, since: str = "") -> str:
    over = f"OVER (PARTITION BY {hour}, d.consumer_id)"
    found = ", ".join(
        f"PERCENTILE_CONT({share}) WITHIN GROUP (ORDER BY a.total_ms) {over}" for share in SHARES
    )
    return (
        f"SELECT DISTINCT {hour}, d.consumer_id, {found} FROM {DELIVERED_TO} WHERE {ARRIVED}{since}"
    )


def _duck_percentiles(hour: str) -> str:
    return (
        f"SELECT {hour}, d.consumer_id, quantile_cont(a.total_ms, {list(SHARES)}) "
        f"FROM {DELIVERED_TO} WHERE {ARRIVED} GROUP BY ALL"
    )


def _usage(hour: Callable[[str], str]) -> tuple[str, str, str]:
    a, d, m = map(hour, ("a.started_at", "d.finished_at", "m.accepted_at"))
    whose = "d.channel_id, d.consumer_id, m.producer_id"
    return (
        f"SELECT {a}, {whose}, COUNT(*), SUM(CASE WHEN {ARRIVED} THEN m.body_bytes ELSE 0 END), "
        f"SUM(CASE WHEN {ARRIVED} THEN 0 ELSE 1 END) "
        f"FROM {DELIVERED_TO} {OF_MESSAGES} GROUP BY 1, 2, 3, 4",
        f"SELECT {d}, {whose}, d.state, COUNT(*) FROM {DELIVERIES} d {OF_MESSAGES} "
        "GROUP BY 1, 2, 3, 4, 5",
        f"SELECT {m}, m.channel_id, m.producer_id, COUNT(*), SUM(m.body_bytes) "
        f"FROM {MESSAGES} m GROUP BY 1, 2, 3",
    )


_RECENT = f" AND a.started_at >= UTC_DATE() - {LAST_DAYS}"
_RUNS = (
    "SELECT consumer_id, run, COUNT(*), MIN(started_at), MAX(started_at) FROM ("
    f"SELECT d.consumer_id, a.started_at, SUM({ARRIVED}) OVER "
    f"(PARTITION BY d.consumer_id ORDER BY a.id) AS run FROM {DELIVERED_TO} WHERE TRUE{{}}"
    ") AS tries GROUP BY 1, 2 HAVING COUNT(*) > 1"
)
_SHAPE = "REGEXP_REPLACE(REGEXP_REPLACE({text}, '{address}', '<address>'{all}), '[0-9]+', '#'{all})"
_TEXT = "CASE WHEN a.error <> '' THEN a.error ELSE CAST(a.answer_excerpt AS {}) END"
_ADDRESS = "[0-9]+[.][0-9]+[.][0-9]+[.][0-9]+"
_TRIAGE = (
    f"SELECT a.outcome, a.status_code, d.consumer_id, {{shape}}, COUNT(*), MIN(d.id), MAX(d.id) "
    f"FROM {DELIVERIES} d JOIN {ATTEMPTS} a ON a.delivery_id = d.id AND a.number = d.attempt_count "
    "WHERE d.state = 'dead' GROUP BY 1, 2, 3, 4"
)
_AUDIT = (
    f"SELECT m.id FROM {MESSAGES} m LEFT JOIN {DELIVERIES} d ON d.message_id = m.id "
    "GROUP BY m.id, m.consumer_count HAVING COUNT(d.id) <> m.consumer_count",
    f"SELECT d.id FROM {DELIVERIES} d LEFT JOIN {ATTEMPTS} a ON a.delivery_id = d.id "
    "GROUP BY d.id, d.attempt_count HAVING COUNT(a.id) <> d.attempt_count",
    f"SELECT d.id FROM {DELIVERIES} d LEFT JOIN {MESSAGES} m ON m.id = d.message_id "
    "WHERE m.id IS NULL",
    f"SELECT a.id FROM {ATTEMPTS} a LEFT JOIN {DELIVERIES} d ON d.id = a.delivery_id "
    "WHERE d.id IS NULL",
)
_WANTED = (
    f"SELECT COUNT(*), SUM(m.body_bytes) FROM {MESSAGES} m JOIN {DELIVERIES} d "
    "ON d.message_id = m.id WHERE d.consumer_id = 1"
)
_SUBJECT = (
    f"SELECT COUNT(DISTINCT m.id), COUNT(DISTINCT d.id), COUNT(a.id) FROM {MESSAGES} m "
    f"JOIN {DELIVERIES} d ON d.message_id = m.id JOIN {ATTEMPTS} a ON a.delivery_id = d.id "
    "WHERE m.ordering_key = 'customer-8'"
)
_ATTEMPT = "id, delivery_id, started_at, outcome, total_ms"

QUESTIONS = (
    Question(
        name="percentiles",
        title="latency percentiles by hour and consumer",
        command=("bench.pipeline.percentiles",),
        reads=(ATTEMPTS,),
        mariadb=(_percentiles(_hour("a.started_at")),),
        columns={
            ATTEMPTS: "delivery_id, started_at, outcome, total_ms",
            DELIVERIES: "id, consumer_id",
        },
        duckdb=(_duck_percentiles(_duck_hour("a.started_at")),),
    ),
    Question(
        name="usage",
        title="usage of 30 days, with latencies",
        command=("pipeline", "usage", "--since", "{first}"),
        reads=(MESSAGES, DELIVERIES, ATTEMPTS),
        mariadb=(*_usage(_hour), _percentiles(_hour("a.started_at"))),
        columns={
            MESSAGES: "id, channel_id, producer_id, accepted_at, body_bytes",
            DELIVERIES: "id, message_id, channel_id, consumer_id, state, finished_at",
            ATTEMPTS: _ATTEMPT,
        },
        duckdb=(*_usage(_duck_hour), _duck_percentiles(_duck_hour("a.started_at"))),
    ),
    Question(
        name="health",
        title="health of two days and the week before",
        command=("pipeline", "health"),
        reads=(ATTEMPTS,),
        share=9 / 30,
        mariadb=(_percentiles("a.started_at DIV 1000000", _RECENT), _RUNS.format(_RECENT)),
        columns={
            ATTEMPTS: f"{_ATTEMPT} WHERE started_at >= UTC_DATE() - {LAST_DAYS}",
            DELIVERIES: "id, consumer_id",
        },
        duckdb=(
            _duck_percentiles("date_trunc('day', a.started_at)"),
            _RUNS.format("").replace(f"SUM({ARRIVED})", f"SUM(({ARRIVED})::INT)"),
        ),
    ),
    Question(
        name="triage",
        title="dead letters by cause, and what changed",
        command=("pipeline", "triage"),
        reads=(DELIVERIES, ATTEMPTS),
        mariadb=(
            _TRIAGE.format(
                shape=_SHAPE.format(text=_TEXT.format("CHAR(250)"), address=_ADDRESS, all="")
            ),
        ),
        columns={
            DELIVERIES: "id, consumer_id, state, attempt_count WHERE state = 'dead'",
            ATTEMPTS: "delivery_id, number, outcome, status_code, error, answer_excerpt "
            "WHERE outcome NOT IN ('delivered', 'delivered_oversized')",
        },
        duckdb=(
            _TRIAGE.format(
                shape=_SHAPE.format(
                    text=_TEXT.format("VARCHAR"), address=_ADDRESS, all=", 'g'"
                ).replace("REGEXP_REPLACE", "regexp_replace")
            ),
        ),
    ),
    Question(
        name="audit",
        title="audit: whether all is there, once",
        command=("pipeline", "audit", "--since", "{first}"),
        reads=(MESSAGES, DELIVERIES, ATTEMPTS),
        mariadb=_AUDIT,
        columns={
            MESSAGES: "id, consumer_count",
            DELIVERIES: "id, message_id, attempt_count",
            ATTEMPTS: "id, delivery_id",
        },
        duckdb=_AUDIT,
    ),
    Question(
        name="forecast",
        title="forecast out of four weeks",
        command=("pipeline", "forecast"),
        reads=(MESSAGES,),
        share=WEEKS / 30,
        mariadb=(
            f"SELECT channel_id, {_hour('accepted_at')}, COUNT(*), SUM(body_bytes) FROM {MESSAGES} "
            f"WHERE accepted_at >= UTC_TIMESTAMP() - INTERVAL {WEEKS} DAY GROUP BY 1, 2",
        ),
        columns={
            MESSAGES: "channel_id, accepted_at, body_bytes "
            f"WHERE accepted_at >= UTC_TIMESTAMP() - INTERVAL {WEEKS} DAY"
        },
        duckdb=(
            f"SELECT channel_id, {_duck_hour('accepted_at')}, count(*), sum(body_bytes) "
            f"FROM {MESSAGES} GROUP BY ALL",
        ),
    ),
    Question(
        name="archive",
        title="archive, from a cold server: written, read back and compared",
        command=("pipeline", "archive"),
        reads=(DELIVERIES, ATTEMPTS),
        share=29 / 30,
        mariadb=tuple(
            f"SELECT * FROM {table} INTO OUTFILE '{{folder}}/{table}.csv'"
            for table in (DELIVERIES, ATTEMPTS)
        ),
        columns={DELIVERIES: "*", ATTEMPTS: "*"},
        duckdb=tuple(
            f"COPY {table} TO '{{folder}}/{table}.parquet' (FORMAT parquet, COMPRESSION zstd)"
            for table in (DELIVERIES, ATTEMPTS)
        ),
        writes_lake=True,
        starts_cold=True,
    ),
    Question(
        name="replay",
        title="what a replay of 30 days to one consumer would send",
        command=("pipeline", "replay", "--consumer", "month-0/a", "--dry-run"),
        reads=(MESSAGES,),
        mariadb=(_WANTED,),
        columns={MESSAGES: "id, body_bytes", DELIVERIES: "message_id, consumer_id"},
        duckdb=(_WANTED,),
        reads_lake=True,
    ),
    Question(
        name="erase",
        title="what an erasure of one person would take",
        command=("pipeline", "erase", "--ordering-key", "customer-8", "--dry-run"),
        reads=(MESSAGES, DELIVERIES, ATTEMPTS),
        mariadb=(_SUBJECT,),
        columns={
            MESSAGES: "id, ordering_key",
            DELIVERIES: "id, message_id",
            ATTEMPTS: "id, delivery_id",
        },
        duckdb=(_SUBJECT,),
        reads_lake=True,
    ),
)


def ask_duckdb(question: Question, folder: str) -> None:
    """Read the columns of the question's tables, and run its statements."""
    with duckdb.connect() as duck:
        for table, columns in question.columns.items():
            names, _, condition = columns.partition(" WHERE ")
            if names != "*" and not names.startswith("id"):
                names = f"id, {names}"
            source = f"{table} WHERE {condition}" if condition else table
            rows = connectorx.read_sql(
                os.environ["DATABASE_URL"],
                f"SELECT {names} FROM {source}",
                partition_on="id",
                partition_num=DUCKDB_CONNECTIONS,
                return_type="arrow",
            )
            duck.register(f"{table}_rows", rows)
            duck.execute(f"CREATE VIEW {table} AS SELECT * FROM {table}_rows")
        for statement in question.duckdb:
            duck.execute(statement.format(folder=folder)).fetchall()


if __name__ == "__main__":
    (question,) = [it for it in QUESTIONS if it.name == sys.argv[1]]
    ask_duckdb(question, sys.argv[2])
