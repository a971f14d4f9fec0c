"""Record a job's run in the broker's tables, where the console shows it and can stop it.

One run of a job at a time holds the job's lock; the lock of a killed run expires. A write that two
runs at once would corrupt checks, in the same transaction, that its run still holds the lock.
Options that identify a person are redacted in all texts, and deleted when the run ends.
"""

import json
import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from pipeline import settings
from pipeline.broker.database import Database
from pipeline.contract.jobs import MASK, without_subject

logger = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S = 1.0
LOCK_TTL = timedelta(seconds=30)
"""How long a lock outlives its last heartbeat."""
HEARTBEAT_TIMEOUT_S = 20.0
"""Seconds without a written heartbeat after which a run stops, before another may begin."""
LOG_LINES = 200
FAILPOINT = "HOOKSTATION_FAILPOINT"
"""The variable that names a file with the name of a failpoint."""
RUNS = "delivery_pipelinerun"
LOCKS = "delivery_pipelinelock"


class AlreadyRunning(Exception):
    """Another run of the job is active."""


class RunCancelled(Exception):
    """A person asked the run to stop."""


class LockLost(Exception):
    """The run lost its lock, because it wrote no heartbeat for too long."""


class Redactor:
    """Replace private options in the texts of a run."""

    def __init__(self, options: Mapping[str, Any], names: Iterable[str]) -> None:
        values = {str(value) for name in names for value in options.get(name) or [] if value}
        # An error may quote the escaped value.
        escaped = {repr(value)[1:-1] for value in values} | {
            json.dumps(value)[1:-1] for value in values
        }
        longest_first = sorted(values | escaped, key=len, reverse=True)
        # Whole words only, since a short value may be part of another word.
        pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)"
        self._pattern = re.compile(pattern) if values else None

    def __call__(self, text: str) -> str:
        """Return the text without private options."""
        return self._pattern.sub(MASK, text) if self._pattern else text


class RedactingFormatter(logging.Formatter):
    """Format log lines without private options."""

    def __init__(self, form: str, redact: Redactor) -> None:
        super().__init__(form)
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """Format as usual, and redact private options."""
        return self._redact(super().format(record))


class LogBuffer(logging.Handler):
    """Keep the last log lines."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(message)s", redact))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line."""
        self.lines = [*self.lines, self.format(record)][-LOG_LINES:]

    @property
    def text(self) -> str:
        """All kept lines."""
        return "\n".join(self.lines)


class Run:
    """One run of a job. Use it from one thread; it writes heartbeats from another."""

    def __init__(
        self, url: str, job: str, run_id: int, options: dict[str, Any], private: Sequence[str]
    ) -> None:
        self.job = job
        self.id = run_id
        self.on_cancel: Callable[[], None] = lambda: None
        """Called once, from another thread, when the run is to stop."""
        self.stage, self.done, self.total, self.rows = "", 0, 0, 0
        self.on_report: Callable[[], None] = lambda: None
        self.redact = Redactor(options, private)
        """Redacts private options in all texts of the run."""
        self.log = LogBuffer(self.redact)
        self._end_options = without_subject(options, private) if private else None
        self._url = url
        self._stop: type[Exception] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the heartbeat."""
        logging.getLogger("pipeline").addHandler(self.log)
        self._thread.start()

    def report(
        self, stage: str | None = None, done: int = 0, total: int = 0, rows: int | None = None
    ) -> None:
        """Report progress: ``done`` of ``total`` of the stage, and ``rows`` read in all.

        Raises RunCancelled or LockLost when the run is to stop.
        """
        if stage is not None and stage != self.stage:
            self.stage = stage
            logger.info("%s", stage)
        self.done, self.total = done, total
        self.rows = self.rows if rows is None else rows
        self.on_report()
        self.check()

    def check(self) -> None:
        """Raises RunCancelled or LockLost when the run is to stop."""
        if self._stop is not None:
            raise self._stop(self.job)

    def stop(self, why: type[Exception] = RunCancelled) -> None:
        """Stop the run at its next report; may be called from any thread or signal handler."""
        if self._stop is None:
            self._stop = why
            self.on_cancel()

    def cancel_again(self) -> None:
        """Cancel what the job started before it noticed that it is to stop; call it repeatedly."""
        if self._stop is not None:
            with suppress(Exception):  # it may be ending right now
                self.on_cancel()

    def end(self, state: str, result: dict[str, Any], error: str = "") -> None:
        """Record the result, release the lock and delete private options."""
        self._ended.set()
        self._thread.join()
        logging.getLogger("pipeline").removeHandler(self.log)
        database = Database(self._url)
        try:
            with database.transaction():
                database.execute(
                    f"UPDATE {RUNS} SET state = %s, finished_at = %s, result = %s, error = %s, "
                    "stage = %s, done = %s, total = %s, row_count = %s, log = %s WHERE id = %s",
                    [
                        *(state, database.now(), json.dumps(result), self.redact(error)),
                        *(self.stage, self.done, self.total, self.rows, self.log.text, self.id),
                    ],
                )
                if self._end_options is not None:
                    _replace_options(database, self.id, self._end_options)
                database.execute(
                    f"DELETE FROM {LOCKS} WHERE job = %s AND run_id = %s", [self.job, self.id]
                )
        finally:
            database.close()

    def require_lock(self, database: Database) -> None:
        """Lock the run's lock row until the transaction ends. Raises LockLost."""
        held = database.read(
            f"SELECT run_id FROM {LOCKS} WHERE job = %s AND run_id = %s{database.dialect.locked}",
            [self.job, self.id],
        )
        if not held:
            raise LockLost(self.job)

    def _send_heartbeats(self) -> None:
        database: Database | None = None
        written_at = time.monotonic()
        while not self._ended.wait(HEARTBEAT_INTERVAL_S):
            try:
                database = database or Database(self._url)
                self._write(database)
                written_at = time.monotonic()
            except Exception:
                # The run itself may not need the database at the moment.
                logger.warning("no heartbeat", exc_info=True)
                database = None
            if time.monotonic() - written_at > HEARTBEAT_TIMEOUT_S:
                self.stop(LockLost)
        if database is not None:
            database.close()

    def _write(self, database: Database) -> None:
        now = database.now()
        held = database.execute(
            f"UPDATE {LOCKS} SET until = %s WHERE job = %s AND run_id = %s",
            [now + LOCK_TTL, self.job, self.id],
        )
        database.execute(
            f"UPDATE {RUNS} SET heartbeat_at = %s, stage = %s, done = %s, total = %s, "
            "row_count = %s, log = %s WHERE id = %s",
            [now, self.stage, self.done, self.total, self.rows, self.log.text, self.id],
        )
        cancelled = database.read(f"SELECT cancel_at FROM {RUNS} WHERE id = %s", [self.id])
        if not held:
            self.stop(LockLost)
        elif not cancelled or cancelled[0][0] is not None:
            self.stop()


def begin(
    url: str,
    job: str,
    options: dict[str, Any],
    *,
    run_id: int | None,
    requested_by: str,
    private: Sequence[str] = (),
) -> Run:
    """Begin a run that holds its job's lock: the queued run with this number, or a new one.

    ``private`` are names of options that identify a person; they are deleted when the run ends.

    Raises AlreadyRunning while another run of the job is active, and LookupError where there is no
    such run.
    """
    database = Database(url)
    try:
        with database.transaction():
            now = database.now()
            if run_id is None:
                run_id = database.insert(
                    f"INSERT INTO {RUNS} (job, options, state, requested_by, requested_at, stage, "
                    "done, total, row_count, result, error, log, host) "
                    "VALUES (%s, %s, 'queued', %s, %s, '', 0, 0, 0, '{}', '', '', '')",
                    [job, json.dumps(options), requested_by, now],
                )
            _lock(database, job, run_id, private)
            started = database.execute(
                f"UPDATE {RUNS} SET state = 'running', started_at = %s, heartbeat_at = %s, "
                "host = %s, pid = %s WHERE id = %s AND job = %s AND state = 'queued'",
                [now, now, socket.gethostname(), os.getpid(), run_id, job],
            )
            if not started:
                raise LookupError(f"No run {run_id} of {job} is waiting.")
    finally:
        database.close()
    run = Run(url, job, run_id, options, private)
    run.start()
    return run


def options_of(url: str, run_id: int) -> tuple[str, dict[str, Any]]:
    """Return the job and options of a run. Raises LookupError."""
    database = Database(url)
    try:
        rows = database.read(f"SELECT job, options FROM {RUNS} WHERE id = %s", [run_id])
    finally:
        database.close()
    if not rows:
        raise LookupError(f"There is no run {run_id}.")
    return rows[0][0], json.loads(rows[0][1])


def failpoint(name: str) -> None:
    """Kill the process when the file that FAILPOINT names contains this name, for crash tests.

    The process renames the file first, as in the broker, so that its successor passes.
    """
    path = settings.get(FAILPOINT)
    if not path:
        return
    with suppress(FileNotFoundError):
        if Path(path).read_text() == name:
            os.rename(path, f"{path}.reached")
            os.kill(os.getpid(), signal.SIGKILL)


def _replace_options(database: Database, run_id: int, options: dict[str, Any]) -> None:
    database.execute(f"UPDATE {RUNS} SET options = %s WHERE id = %s", [json.dumps(options), run_id])


def _lock(database: Database, job: str, run_id: int, private: Sequence[str]) -> None:
    now = database.now()
    held = database.read(
        f"SELECT run_id FROM {LOCKS} WHERE job = %s AND until > %s{database.dialect.locked}",
        [job, now],
    )
    if held and held[0][0] != run_id:
        raise AlreadyRunning(f"Run {held[0][0]} of {job} is at work.")
    for (dead,) in database.read(f"SELECT run_id FROM {LOCKS} WHERE job = %s", [job]):
        database.execute(
            f"UPDATE {RUNS} SET state = 'failed', finished_at = %s, "
            "error = 'Its process ended without a result.' WHERE id = %s AND state = 'running'",
            [now, dead],
        )
        query = f"SELECT options FROM {RUNS} WHERE id = %s"
        for (stored,) in database.read(query, [dead]) if private else []:
            _replace_options(database, dead, without_subject(json.loads(stored), private))
    database.execute(f"DELETE FROM {LOCKS} WHERE job = %s", [job])
    database.execute(
        f"INSERT INTO {LOCKS} (job, run_id, until) VALUES (%s, %s, %s)",
        [job, run_id, now + LOCK_TTL],
    )
