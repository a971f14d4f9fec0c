"""Measure a month of each size: every question to the pipeline, to MariaDB and to DuckDB.

Then measure how long messages take while jobs run, and while the broker prunes its tables.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from bench import databases, internal, machine, results
from bench.adapters import BenchError
from bench.broker import Hookstation
from bench.console import Bar
from bench.databases import ROOT, Database
from bench.machine import Machine
from bench.pipeline.queries import ATTEMPTS, DELIVERIES, MESSAGES, QUESTIONS, Question
from bench.session import PREFIX
from bench.sink import Sink
from bench.stage import QUICK, Stage, percentile

PER_MESSAGE = {MESSAGES: 1.0, DELIVERIES: 2.0, ATTEMPTS: 2.5}
"""Rows per message of the month in bench/internal/history.py."""
MAX_STATEMENT_S = 1800
POLL_S = 0.2
WATCH_S = 0.5
"""Seconds between measurements of a job's processes."""
COLD_BYTES = 128 * 1024 * 1024
"""Buffer pool of a server that is to evict its pages."""
DELIVERING = "delivering"
"""Name of the measurement of deliveries among the questions."""
RETENTION = {"HOOKSTATION_RETENTION_DAYS": "1", "HOOKSTATION_DEAD_RETENTION_DAYS": "1"}
SEGMENTS, SCHEDULES = "delivery_segment", "delivery_pipelineschedule"
SCHEDULED_JOBS = ("archive", "usage", "health", "triage", "audit", "forecast")
RATE = 50
"""Messages per second beside jobs."""
ROUND_S, ALONE_S, MAX_S = 4, 20, 900
NICE = ("nice", "-n", "5")
"""The niceness with which the broker starts its jobs (docs/pipeline.md)."""


@dataclass(slots=True)
class Cost:
    seconds: float = 0.0
    database_cpu_s: float = 0.0
    """User and system time of the database server."""
    driver_bytes: int = 0
    """Peak memory of the command's own process."""
    jvm_bytes: int = 0
    """Peak memory of its Java: Spark's driver, and in local mode its executors too."""
    workers_bytes: int = 0
    """Peak memory of all other child processes, shared memory counted once (PSS): Spark's Python
    workers."""
    cpu_s: dict[str, float] = field(default_factory=dict)
    """User and system time by process id, at the last measurement before its end."""

    def watch(self, pid: int, done: threading.Event) -> None:
        while not done.wait(WATCH_S):
            below = machine.descendants(pid)
            times = machine.cpu_times({"all": [pid, *below]}).seconds["all"]
            self.cpu_s |= {f"{process}": used for process, used in times.items()}
            java = [child for child in below if machine.program(child) == "java"]
            others = [child for child in below if child not in java]
            self.driver_bytes = max(self.driver_bytes, machine.peak_memory([pid]))
            self.jvm_bytes = max(self.jvm_bytes, machine.peak_memory(java))
            self.workers_bytes = max(self.workers_bytes, machine.memory(others))


@dataclass(slots=True)
class Answer:
    """The result of one question at one size."""

    question: str
    attempts: int
    """Attempts in the tables."""
    rows: int
    """Rows that the question covers."""
    job: Cost = field(default_factory=Cost)
    mariadb_s: float | None = None
    mariadb_cpu_s: float | None = None
    duckdb: Cost | None = None
    failures: list[str] = field(default_factory=list)
    other_work: float = 0.0
    """Share of the machine that other work took."""


@dataclass(slots=True)
class Latency:
    """Latencies of messages delivered during one activity."""

    activity: str
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    seconds: float = 0.0
    rows: int = 0
    """Rows deleted meanwhile; 0 where none are."""


@dataclass(slots=True)
class Findings:
    at: str
    """RFC 3339, UTC."""
    machine: Machine
    settings: str
    answers: list[Answer] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    """Those of messages beside jobs."""
    latency_attempts: int = 0
    """Attempts in the tables during these."""
    failures: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> Path:
        return results.store(self, folder, "pipeline")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load from JSON. Raises BenchError."""
        try:
            found: dict[str, Any] = json.loads(path.read_text())
            found["machine"] = Machine(**found["machine"])
            for answer in found["answers"]:
                answer["job"] = Cost(**answer["job"])
                answer["duckdb"] = answer["duckdb"] and Cost(**answer["duckdb"])
            found["answers"] = [Answer(**answer) for answer in found["answers"]]
            found["latencies"] = [Latency(**latency) for latency in found["latencies"]]
            return cls(**found)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise BenchError(f"{path} holds no findings about the pipeline: {error}") from None


@dataclass(frozen=True, slots=True)
class Session:
    sizes: Sequence[int]
    """Numbers of attempts, ascending."""
    beside: int
    """The size at which MariaDB and DuckDB are measured too."""
    only: Sequence[str]
    keep: Path

    def steps(self) -> int:
        return len(self.sizes) * (1 + len(self._questions())) + 2

    def run(self, bar: Bar) -> Findings:
        """Measure everything, each part on a MariaDB server of its own. Raises BenchError."""
        with _month() as month:
            at = datetime.now(UTC).isoformat(timespec="seconds")
            findings = Findings(at, machine.describe(month.folder), month.database.describe())
            bar.say(findings.settings)
            done = 0
            for size in self.sizes if self._questions() else ():
                month.fill(self.sizes[-1], done, size, bar)
                done = size
                for question in self._questions():
                    with bar.step(question.name):
                        answer = month.ask(question, size, beside=size == self.beside)
                    findings.answers.append(answer)
                    findings.save(self.keep)
                    bar.say(_summary(answer))
                month.empty_lake()
        if not self.only or DELIVERING in self.only:
            self._deliver(findings, bar)
        findings.save(self.keep)
        return findings

    def _questions(self) -> list[Question]:
        return [it for it in QUESTIONS if not self.only or it.name in self.only]

    def _deliver(self, findings: Findings, bar: Bar) -> None:
        findings.latency_attempts = size = self.sizes[0]
        with _month() as month, Sink() as sink:
            month.fill(size, 0, size, bar)
            with bar.step(DELIVERING):
                try:
                    findings.latencies = month.deliver(sink)
                except BenchError as error:
                    findings.failures.append(str(error))
        for it in findings.latencies:
            bar.say(f"  {it.activity:12} {it.p50_ms:.1f} / {it.p99_ms:.1f} ms")


def _summary(answer: Answer) -> str:
    if answer.failures:
        return f"  {answer.question:12} FAILED: {answer.failures[0]}"
    text = f"  {answer.question:12} {answer.job.seconds:6.1f} s"
    text += f"  {answer.rows / answer.job.seconds:10,.0f} rows/s"
    if answer.mariadb_s is not None and answer.duckdb:
        text += f"   MariaDB {answer.mariadb_s:.1f} s, DuckDB {answer.duckdb.seconds:.1f} s"
    return text


@contextmanager
def _month() -> Iterator["_Month"]:
    """Provide an empty database and folders while the context is open."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        with databases.fresh("mariadb", folder) as database:
            broker = Hookstation(database.url, folder)
            broker.environment |= RETENTION
            yield _Month(database, folder, broker)


@dataclass(frozen=True, slots=True)
class _Month:
    """A database with a month of traffic, folders, and a broker that can be started there."""

    database: Database
    folder: Path
    broker: Hookstation

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def fill(self, longest: int, done: int, total: int, bar: Bar) -> None:
        """Fill the month up to ``total`` attempts; it has ``done``, and will have ``longest``."""
        sizes = {"longest": longest, "done": done, "total": total}
        messages = {name: round(size / PER_MESSAGE[ATTEMPTS]) for name, size in sizes.items()}
        with bar.step(f"{total:,} attempts") as progress:
            environment = self.broker.environment
            found = internal.run("history.fill_month", environment, progress, **messages)
            if found["gap"]:
                raise BenchError(f"The counters differ from the rows by {found['gap']}.")

    def ask(self, question: Question, size: int, *, beside: bool) -> Answer:
        """Measure the job, and with ``beside`` the other systems."""
        per_attempt = sum(PER_MESSAGE[table] for table in question.reads) / PER_MESSAGE[ATTEMPTS]
        answer = Answer(question.name, size, round(per_attempt * size * question.share))
        busy, server_s = machine.machine_cpu_s(), self._server_cpu_s()
        start, harness = time.monotonic(), time.process_time()
        try:
            if question.starts_cold:
                self._cool()
            self._ask_pipeline(question, answer)
            if beside:
                self._ask_mariadb(question, answer)
                self._ask_duckdb(question, answer)
        except BenchError as error:
            answer.failures.append(str(error))
        costs = [answer.job, answer.duckdb] if answer.duckdb else [answer.job]
        used = sum(sum(cost.cpu_s.values()) for cost in costs) + self._server_cpu_s() - server_s
        used += time.process_time() - harness
        spent = (time.monotonic() - start) * len(os.sched_getaffinity(0))
        answer.other_work = max(0.0, (machine.machine_cpu_s() - busy - used) / spent)
        return answer

    def _server_cpu_s(self) -> float:
        times = machine.cpu_times({"server": self.database.pids})
        return sum(times.seconds["server"].values())

    def empty_lake(self) -> None:
        """Reset the archive; no row was deleted."""
        with self.database.cursor() as cursor:
            cursor.execute(f"DELETE FROM {SEGMENTS}")
            cursor.execute("COMMIT")
        shutil.rmtree(self.lake, ignore_errors=True)

    def _cool(self) -> None:
        """Evict pages from the buffer pool by shrinking it to ``COLD_BYTES`` for a moment.

        Raises BenchError.
        """
        with self.database.cursor() as cursor:
            cursor.execute("SELECT @@innodb_buffer_pool_size, @@innodb_page_size")
            full, page = cursor.fetchone()
            try:
                cursor.execute("SET GLOBAL innodb_buffer_pool_size = %s", (COLD_BYTES,))
                end = time.monotonic() + MAX_STATEMENT_S
                while self._cached_pages(cursor) * page > COLD_BYTES:
                    if time.monotonic() > end:
                        raise BenchError("The server keeps its memory.")
                    time.sleep(POLL_S)
            finally:
                cursor.execute("SET GLOBAL innodb_buffer_pool_size = %s", (full,))

    @staticmethod
    def _cached_pages(cursor: Any) -> int:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_data'")
        return int(cursor.fetchone()[1])

    def _ask_pipeline(self, question: Question, answer: Answer) -> None:
        variables = {}
        if question.writes_lake:
            self.empty_lake()
        if question.writes_lake or question.reads_lake:
            self.lake.mkdir(exist_ok=True)
            variables["HOOKSTATION_LAKE"] = str(self.lake)
        first = (datetime.now(UTC) - timedelta(days=31)).strftime("%Y-%m-%dT%H:00:00Z")
        words = [word.format(first=first) for word in question.command]
        answer.job = self._run(*words, **variables)

    def _ask_mariadb(self, question: Question, answer: Answer) -> None:
        start, cpu_s = time.monotonic(), self._server_cpu_s()
        with self._work_folder() as folder, self.database.cursor() as cursor:
            cursor.execute(f"SET SESSION max_statement_time = {MAX_STATEMENT_S}")
            for statement in question.mariadb:
                try:
                    cursor.execute(statement.format(folder=folder))
                except Exception as error:  # the table shows any error of the driver
                    raise BenchError(f"MariaDB: {error}") from None
                cursor.fetchall()
            answer.mariadb_s = time.monotonic() - start
        answer.mariadb_cpu_s = self._server_cpu_s() - cpu_s

    def _ask_duckdb(self, question: Question, answer: Answer) -> None:
        with self._work_folder() as folder:
            answer.duckdb = self._run("bench.pipeline.queries", question.name, str(folder))

    @contextmanager
    def _work_folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            Path(name).chmod(0o777)  # the server writes there as another user
            yield Path(name)

    def _run(self, *words: str, **variables: str) -> Cost:
        """Run ``python -m`` with these words to its end.

        Raises BenchError with the last line of its output when it fails.
        """
        cost, server_s = Cost(), self._server_cpu_s()
        start = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                env={**self.broker.environment, **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
            done = threading.Event()
            watcher = threading.Thread(target=cost.watch, args=(process.pid, done), daemon=True)
            watcher.start()
            try:
                code = process.wait()
            except BaseException:
                process.terminate()
                process.wait()
                raise
            finally:
                done.set()
                watcher.join()
            cost.seconds = time.monotonic() - start
            output.seek(0)
            lines = output.read().splitlines()
        cost.database_cpu_s = self._server_cpu_s() - server_s
        if code:
            raise BenchError(f"{' '.join(words[:2])} ended with {code}: {' '.join(lines[-1:])}")
        return cost

    def deliver(self, sink: Sink) -> list[Latency]:
        """Measure deliveries alone, beside `usage` and `archive`, and while rows are deleted.

        Raises BenchError.
        """
        self.lake.mkdir()
        self.broker.environment["HOOKSTATION_LAKE"] = str(self.lake)
        with self.database.cursor() as cursor:  # the scheduler must start no job meanwhile
            cursor.executemany(
                f"INSERT INTO {SCHEDULES} (job, mode, every_minutes) VALUES (%s, 'off', 60)",
                [(job,) for job in SCHEDULED_JOBS],
            )
            cursor.execute("COMMIT")
        self.broker.start()
        try:
            stage = Stage(self.broker, self.database, sink, QUICK)
            (consumer,) = stage.consumers("take")
            _Deliveries(stage, consumer).run_for(ALONE_S)  # a warm-up
            alone = _Deliveries(stage, consumer)
            alone.run_for(ALONE_S)
            found = [alone.latency("nothing else")]
            found += [self._deliver_beside(job, stage, consumer) for job in ("usage", "archive")]
            rows, pruning = self._rows_left(), _Deliveries(stage, consumer)
            while pruning.round() < MAX_S and self._rows_left():
                pass
            return [*found, pruning.latency("pruning", rows)]
        finally:
            self.broker.stop()

    def _rows_left(self) -> int:
        """Return the number of archived rows that are not deleted yet."""
        with self.database.cursor() as cursor:
            cursor.execute(
                f"SELECT COALESCE(SUM(row_count - deleted_count), 0) FROM {SEGMENTS} "
                "WHERE state IN ('verified', 'pruning')"
            )
            return int(cursor.fetchone()[0])

    def _deliver_beside(self, job: str, stage: Stage, consumer: int) -> Latency:
        deliveries = _Deliveries(stage, consumer)
        with subprocess.Popen(
            [*NICE, sys.executable, "-m", "pipeline", job],
            cwd=ROOT,
            env=self.broker.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                while deliveries.round() < MAX_S and process.poll() is None:
                    pass
            finally:
                process.terminate()
        if process.returncode:
            raise BenchError(f"{job} ended with {process.returncode}.")
        return deliveries.latency(job)


@dataclass(slots=True)
class _Deliveries:
    stage: Stage
    consumer: int
    latencies_ms: list[float] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def round(self) -> float:
        """Deliver messages for a few seconds; returns the seconds since the first round began."""
        flow = self.stage.deliver(RATE * ROUND_S, [self.consumer], rate=RATE)
        self.latencies_ms += flow.latencies_ms(self.consumer)
        return time.monotonic() - self.started

    def run_for(self, seconds: float) -> None:
        while self.round() <= seconds:
            pass

    def latency(self, activity: str, rows: int = 0) -> Latency:
        p50, p99 = (percentile(self.latencies_ms, share) for share in (0.5, 0.99))
        return Latency(activity, p50, p99, time.monotonic() - self.started, rows)
