"""Measure a month of each size: every question to the pipeline, to MariaDB and to DuckDB."""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench import cpu, databases, inside, machine
from bench.adapters import BenchError
from bench.broker import Hookstation
from bench.databases import Database
from bench.pipeline import watch
from bench.pipeline.delivering import Delivering, Spell
from bench.pipeline.findings import Answer, Findings
from bench.pipeline.questions import ATTEMPTS, DELIVERIES, MESSAGES, QUESTIONS, Question
from bench.progress import Bar
from bench.sink import Sink

PREFIX = "hookstation-bench-"
PER_MESSAGE = {MESSAGES: 1.0, DELIVERIES: 2.0, ATTEMPTS: 2.5}
"""Rows per message in bench/inside/month.py."""
PATIENCE_S = 1800
POLL_S = 0.2
LEAST_MEMORY = 128 * 1024 * 1024
"""Buffer pool of a server that is to evict its pages."""
RETENTION = {"HOOKSTATION_RETENTION_DAYS": "1", "HOOKSTATION_DEAD_RETENTION_DAYS": "1"}
DELIVERING = "delivering"
"""Name of this measurement among the questions."""
SEGMENTS, SCHEDULES = "delivery_segment", "delivery_pipelineschedule"
BY_THE_CLOCK = ("archive", "usage", "health", "triage", "audit", "forecast")


@dataclass(frozen=True, slots=True)
class Session:
    """What to measure."""

    sizes: Sequence[int]
    """Numbers of attempts, ascending."""
    beside: int
    """The size at which MariaDB and DuckDB are measured too."""
    only: Sequence[str] = ()
    keep: Path | None = None

    def run(self, bar: Bar) -> Findings:
        """Measure everything, each part on a MariaDB server of its own. Raises BenchError."""
        with _place() as place:
            at = datetime.now(UTC).isoformat(timespec="seconds")
            findings = Findings(at, machine.describe(place.folder), place.database.describe())
            bar.say(findings.settings)
            done = 0
            for size in self.sizes if self._questions() else ():
                place.fill(self.sizes[-1], done, size, bar)
                done = size
                self._ask(place, size, findings, bar)
        if DELIVERING in (self.only or [DELIVERING]):
            self._deliver(findings, bar)
        if self.keep is not None:
            findings.save(self.keep)
        return findings

    def parts(self) -> int:
        """Number of steps of the progress bar."""
        return len(self.sizes) * (1 + len(self._questions())) + 2

    def _deliver(self, findings: Findings, bar: Bar) -> None:
        findings.deliver_attempts = size = self.sizes[0]
        with _place() as place, Sink() as sink:
            place.fill(size, 0, size, bar)
            with bar.row(DELIVERING):
                try:
                    findings.spells = place.deliver(sink)
                except BenchError as error:
                    findings.failures.append(str(error))
        for spell in findings.spells:
            bar.say(f"  {spell.name:12} {spell.p50_ms:.1f} / {spell.p99_ms:.1f} ms")

    def _questions(self) -> list[Question]:
        return [it for it in QUESTIONS if not self.only or it.name in self.only]

    def _ask(self, place: "_Place", size: int, findings: Findings, bar: Bar) -> None:
        for question in self._questions():
            with bar.row(question.name):
                answer = place.ask(question, size, beside=size == self.beside)
            findings.answers.append(answer)
            if self.keep is not None:
                findings.save(self.keep)
            bar.say(_brief(answer))
        place.empty_lake()


@contextmanager
def _place() -> Iterator["_Place"]:
    """Provide an empty database and folders while the context is open."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        with databases.fresh("mariadb", folder) as database:
            broker = Hookstation(database.url, folder)
            broker.environment |= RETENTION
            yield _Place(database, folder, broker)


@dataclass(frozen=True, slots=True)
class _Place:
    """A database with a month of traffic, folders, and a broker that can be started there."""

    database: Database
    folder: Path
    broker: Hookstation

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables of the broker."""
        return self.broker.environment

    def fill(self, most: int, done: int, total: int, bar: Bar) -> None:
        """Fill the month up to ``total`` attempts; it has ``done``, and will have ``most``."""
        with bar.row(f"{total:,} attempts") as tell:
            numbers = (round(number / PER_MESSAGE[ATTEMPTS]) for number in (most, done, total))
            if gap := inside.run("month", self.variables, *numbers, tell=tell)["gap"]:
                raise BenchError(f"The accounting gap is {gap}.")

    def deliver(self, sink: Sink) -> list[Spell]:
        """Measure deliveries beside jobs."""
        self.lake.mkdir()
        self.broker.environment["HOOKSTATION_LAKE"] = str(self.lake)
        with self._cursor() as cursor:  # the scheduler must start no job meanwhile
            cursor.executemany(
                f"INSERT INTO {SCHEDULES} (job, mode, every_minutes) VALUES (%s, 'off', 60)",
                [(job,) for job in BY_THE_CLOCK],
            )
            cursor.execute("COMMIT")
        self.broker.start()
        try:
            return Delivering(self.database, self.broker, sink).measure(self._rows_left)
        finally:
            self.broker.stop()

    def _rows_left(self) -> int:
        """Return the number of archived rows that are not deleted yet."""
        with self._cursor() as cursor:
            cursor.execute(
                f"SELECT COALESCE(SUM(row_count - deleted_count), 0) FROM {SEGMENTS} "
                "WHERE state IN ('verified', 'pruning')"
            )
            return int(cursor.fetchone()[0])

    @property
    def lake(self) -> Path:
        """The lake's folder, for jobs that use it."""
        return self.folder / "lake"

    def ask(self, question: Question, size: int, *, beside: bool) -> Answer:
        """Measure the job, and at one size the other systems."""
        rows = sum(PER_MESSAGE[table] for table in question.reads) * size / 2.5 * question.share
        answer = Answer(question.name, size, round(rows))
        busy, server = cpu.machine(), cpu.look({"server": self.database.pids})
        start, harness = time.monotonic(), time.process_time()
        try:
            if question.begins_cold:
                self._cool()
            self._ask_pipeline(question, answer)
            if beside:
                self._ask_mariadb(question, answer)
                self._ask_duckdb(question, answer)
        except BenchError as error:
            answer.failures.append(str(error))
        used = answer.cpu_s + answer.duckdb_cpu_s + time.process_time() - harness
        used += cpu.look({"server": self.database.pids}).since(server)["server"]
        spent = (time.monotonic() - start) * len(os.sched_getaffinity(0))
        answer.strangers = max(0.0, (cpu.machine() - busy - used) / spent)
        return answer

    def empty_lake(self) -> None:
        """Reset the archive; no row was deleted."""
        with self._cursor() as cursor:
            cursor.execute(f"DELETE FROM {SEGMENTS}")
            cursor.execute("COMMIT")
        shutil.rmtree(self.lake, ignore_errors=True)

    def _cool(self) -> None:
        """Evict pages from the buffer pool by shrinking it to ``LEAST_MEMORY`` for a moment.

        Raises BenchError.
        """
        with self._cursor() as cursor:
            cursor.execute("SELECT @@innodb_buffer_pool_size, @@innodb_page_size")
            full, page = cursor.fetchone()
            try:
                cursor.execute("SET GLOBAL innodb_buffer_pool_size = %s", (LEAST_MEMORY,))
                end = time.monotonic() + PATIENCE_S
                while self._pages_in_memory(cursor) * page > LEAST_MEMORY:
                    if time.monotonic() > end:
                        raise BenchError("The server keeps its memory.")
                    time.sleep(POLL_S)
            finally:
                cursor.execute("SET GLOBAL innodb_buffer_pool_size = %s", (full,))

    @staticmethod
    def _pages_in_memory(cursor: Any) -> int:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_data'")
        return int(cursor.fetchone()[1])

    def _ask_pipeline(self, question: Question, answer: Answer) -> None:
        variables = dict(self.variables)
        if question.writes_lake:
            self.empty_lake()
        if question.writes_lake or question.wants_lake:
            self.lake.mkdir(exist_ok=True)
            variables["HOOKSTATION_LAKE"] = str(self.lake)
        first = (datetime.now(UTC) - timedelta(days=31)).strftime("%Y-%m-%dT%H:00:00Z")
        words = [word.format(first=first) for word in question.command]
        cost = watch.run([sys.executable, "-m", *words], variables, self.database.pids)
        answer.seconds, answer.database_cpu_s = cost.seconds, cost.database_cpu_s
        answer.driver_bytes, answer.jvm_bytes = cost.driver_bytes, cost.jvm_bytes
        answer.workers_bytes = cost.workers_bytes
        answer.cpu_s = sum(cost.cpu_s.values())

    def _ask_mariadb(self, question: Question, answer: Answer) -> None:
        before = cpu.look({"server": self.database.pids})
        start = time.monotonic()
        with self._folder() as folder, self._cursor() as cursor:
            cursor.execute(f"SET SESSION max_statement_time = {PATIENCE_S}")
            for statement in question.mariadb:
                try:
                    cursor.execute(statement.format(folder=folder))
                except Exception as error:  # the table shows any error of the driver
                    raise BenchError(f"MariaDB: {error}") from None
                cursor.fetchall()
            answer.mariadb_s = time.monotonic() - start
        spent = cpu.look({"server": self.database.pids}).since(before)
        answer.mariadb_cpu_s = spent["server"]

    def _ask_duckdb(self, question: Question, answer: Answer) -> None:
        with self._folder() as folder:
            statements = [it.format(folder=folder) for it in question.duckdb]
            asked = json.dumps({"columns": question.columns, "statements": statements})
            (folder / "asked.json").write_text(asked)
            cost = watch.run(
                [sys.executable, "-m", "bench.pipeline.duck", str(folder / "asked.json")],
                self.variables,
                self.database.pids,
            )
        answer.duckdb_s, answer.duckdb_bytes = cost.seconds, cost.driver_bytes
        answer.duckdb_cpu_s = sum(cost.cpu_s.values())

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            Path(name).chmod(0o777)  # the server writes there as another user
            yield Path(name)

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        at = urlsplit(self.database.url)
        with databases.connect(at.hostname, at.port, at.username, at.password) as cursor:
            cursor.execute(f"USE {at.path.removeprefix('/')}")
            yield cursor


def _brief(answer: Answer) -> str:
    if answer.failures:
        return f"  {answer.question:12} FAILED: {answer.failures[0]}"
    text = f"  {answer.question:12} {answer.seconds:6.1f} s"
    text += f"  {answer.rows / answer.seconds:10,.0f} rows/s"
    if answer.mariadb_s is not None and answer.duckdb_s is not None:
        text += f"   MariaDB {answer.mariadb_s:.1f} s, DuckDB {answer.duckdb_s:.1f} s"
    return text
