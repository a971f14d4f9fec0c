"""Publish in the background: store messages in a spool file and send them in batches.

The spool is an SQLite file. When `Buffer.publish` returns, the message is in the file and survives
the process; the next process that opens the file sends it. Each message gets its idempotency key
when it is spooled, so the broker stores nothing twice if the response to a batch is lost.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookstation_client.errors import (
    BadRequest,
    ConnectionFailed,
    HookstationError,
    RateLimited,
    Unavailable,
)
from hookstation_client.models import BatchResult, Outgoing

if TYPE_CHECKING:
    from hookstation_client.client import Hookstation

logger = logging.getLogger("hookstation_client.buffer")

MAX_BATCH = 500
MAX_BATCH_BYTES = 8 * 1024 * 1024
"""Most bytes of JSON items in a batch; the broker accepts 16 MiB."""
LINGER_S = 0.05
"""Seconds for which a message waits for others to form a batch."""
MAX_PAUSE_S = 30.0
CLOSE_TIMEOUT_S = 10.0

_TABLES = """
CREATE TABLE IF NOT EXISTS waiting (
    number INTEGER PRIMARY KEY AUTOINCREMENT, channel TEXT NOT NULL, item TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS refused (
    number INTEGER PRIMARY KEY, channel TEXT NOT NULL, item TEXT NOT NULL, error TEXT NOT NULL
);
"""

_of_parents: list[sqlite3.Connection] = []


@dataclass(frozen=True)
class Refused:
    """A message that the broker refused finally."""

    channel: str
    item: dict[str, Any]
    """The message as an item of a batch (docs/api.md, "Publish many at once")."""
    error: str


class SpoolItem(Outgoing):
    """A message from the spool file, with the batch item that is stored there."""

    def __init__(self, item: dict[str, Any]) -> None:
        super().__init__(None, id=item["idempotency_key"])
        self.item = item

    def as_item(self) -> dict[str, Any]:
        """Return the item as it was spooled."""
        return self.item


class Buffer:
    """Publishes to one channel in the background, in the order of the calls.

    ``spool`` is the path of the spool file. Without one, messages wait in memory and are lost when
    the process ends. Messages in the file survive a kill of the process. A power failure may lose
    the newest ones, unless ``fsync`` is true: then each `publish` waits until the message is on
    disk.

    Several processes may share a file: any of them sends a message, and the broker stores it once.
    The background thread calls ``on_refused`` with each message that the broker refuses finally.
    Such messages stay in the file; `refused` returns them.
    """

    def __init__(
        self,
        client: Hookstation,
        channel: str,
        *,
        spool: str | Path | None = None,
        fsync: bool = False,
        on_refused: Callable[[Refused], None] | None = None,
    ) -> None:
        self.client = client
        self.channel = channel
        self.on_refused = on_refused
        self._path = ":memory:" if spool is None else str(spool)
        self._fsync = fsync
        self._closed = False
        self._start()
        atexit.register(self.close)

    def publish(self, body: Any, **fields: Any) -> str:
        """Spool a message and return its idempotency key. The fields are those of `Outgoing`.

        Raises `ValueError` if the buffer is closed, and `sqlite3.Error` if the file cannot be
        written.
        """
        if self._closed:
            raise ValueError("The buffer is closed.")
        outgoing = Outgoing(body, **fields)
        if outgoing.deliver_in is not None:
            # The delay counts from now, not from when the broker stores the message.
            outgoing.deliver_at = datetime.now(timezone.utc) + timedelta(
                seconds=outgoing.deliver_in
            )
            outgoing.deliver_in = None
        text = json.dumps(outgoing.as_item(), ensure_ascii=False, separators=(",", ":"))
        self._rows("INSERT INTO waiting (channel, item) VALUES (?, ?)", self.channel, text)
        self._work.set()
        assert outgoing.id is not None
        return outgoing.id

    def waiting(self) -> int:
        """Return the number of messages in the spool."""
        return int(self._rows("SELECT count(*) FROM waiting")[0][0])

    def refused(self) -> list[Refused]:
        """Return the messages that the broker refused finally, oldest first."""
        rows = self._rows("SELECT channel, item, error FROM refused ORDER BY number")
        return [Refused(channel, json.loads(item), error) for channel, item, error in rows]

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the spool is empty; return false if that takes longer than ``timeout`` s."""
        end = None if timeout is None else time.monotonic() + timeout
        self._hurry.set()
        self._work.set()
        while self.waiting():
            left = 0.05 if end is None else min(0.05, end - time.monotonic())
            if left <= 0 or not self._thread.is_alive():
                return False
            time.sleep(left)
        return True

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send spooled messages for up to ``timeout`` seconds. A file keeps the rest."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        atexit.unregister(self.close)
        done = self.flush(timeout)
        self._ending.set()
        self._work.set()
        self._thread.join(timeout=max(1.0, timeout))
        if not done:
            left = self.waiting()
            logger.warning("%d messages were not sent; %s", left, self._path)
        if not self._thread.is_alive():
            with self._lock:
                self._database.close()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._hurry = threading.Event()
        self._ending = threading.Event()
        self._database = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, timeout=30.0
        )
        if self._path != ":memory:":
            self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute(f"PRAGMA synchronous = {'FULL' if self._fsync else 'NORMAL'}")
        self._database.executescript(_TABLES)
        self._work.set()
        self._thread = threading.Thread(target=self._run, name="hookstation-buffer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause = 0.0
        while not self._ending.is_set():
            self._work.wait()
            self._work.clear()
            self._hurry.wait(LINGER_S)
            try:
                while not self._ending.is_set() and self._send_batch():
                    pause = 0.0
                pause = 0.0
                self._hurry.clear()
            except (HookstationError, sqlite3.Error) as error:
                pause = min(MAX_PAUSE_S, max(1.0, pause * 2))
                logger.warning("cannot send spooled messages, retrying in %.0f s: %s", pause, error)
                self._ending.wait(pause)
                self._work.set()

    def _send_batch(self) -> bool:
        """Send the oldest messages; return whether there were any."""
        rows = self._oldest()
        if not rows:
            return False
        channel = rows[0][1]
        items = [SpoolItem(json.loads(item)) for _, _, item in rows]
        try:
            results = self.client.publish_batch(channel, items)
        except BadRequest as error:
            if len(rows) == 1:
                results = [BatchResult(None, error)]
            else:
                # One of them makes the request invalid: send each alone to find it.
                results = [self._alone(channel, item) for item in items]
        self._settle(rows, results)
        return True

    def _alone(self, channel: str, item: SpoolItem) -> BatchResult:
        try:
            return self.client.publish_batch(channel, [item])[0]
        except BadRequest as error:
            return BatchResult(None, error)

    def _oldest(self) -> list[tuple[int, str, str]]:
        """Return the oldest messages of one channel, as many as fit into a batch."""
        chosen: list[tuple[int, str, str]] = []
        size = 0
        for row in self._rows(
            "SELECT number, channel, item FROM waiting ORDER BY number LIMIT ?", MAX_BATCH
        ):
            size += len(row[2].encode())
            if chosen and (size > MAX_BATCH_BYTES or row[1] != chosen[0][1]):
                break
            chosen.append(row)
        return chosen

    def _settle(self, rows: list[tuple[int, str, str]], results: list[BatchResult]) -> None:
        later: HookstationError | None = None
        refused = []
        with self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for (number, channel, item), result in zip(rows, results):
                error = result.error
                if isinstance(error, (ConnectionFailed, RateLimited, Unavailable)):
                    later = error
                    continue
                if error is not None:
                    self._database.execute(
                        "INSERT OR IGNORE INTO refused VALUES (?, ?, ?, ?)",
                        (number, channel, item, str(error)),
                    )
                    refused.append(Refused(channel, json.loads(item), str(error)))
                self._database.execute("DELETE FROM waiting WHERE number = ?", (number,))
        for one in refused:
            logger.error("the broker refused a message finally: %s", one.error)
            if self.on_refused is not None:
                try:
                    self.on_refused(one)
                except Exception:
                    logger.exception("on_refused failed")
        if later is not None:
            raise later

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        if self._pid != os.getpid():
            # After a fork the thread and the connection belong to the parent process. SQLite does
            # not allow the child to use the connection, not even to close it.
            _of_parents.append(self._database)
            self._start()
        with self._lock:
            return self._database.execute(statement, values).fetchall()


class AsyncBuffer:
    """`Buffer` for asyncio. One thread writes the file, and another one sends."""

    def __init__(self, buffer: Buffer, owned: Hookstation | None = None) -> None:
        self._buffer = buffer
        self._owned = owned
        """The client that was created for this buffer, and is closed with it."""

    async def publish(self, body: Any, **fields: Any) -> str:
        """Spool a message and return its idempotency key."""
        return await asyncio.to_thread(lambda: self._buffer.publish(body, **fields))

    async def waiting(self) -> int:
        """Return the number of messages in the spool."""
        return await asyncio.to_thread(self._buffer.waiting)

    async def refused(self) -> list[Refused]:
        """Return the messages that the broker refused finally, oldest first."""
        return await asyncio.to_thread(self._buffer.refused)

    async def flush(self, timeout: float | None = None) -> bool:
        """Wait until the spool is empty; return false if that takes longer than ``timeout`` s."""
        return await asyncio.to_thread(self._buffer.flush, timeout)

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send spooled messages for up to ``timeout`` seconds. A file keeps the rest."""
        await asyncio.to_thread(self._buffer.close, timeout)
        if self._owned is not None:
            self._owned.close()

    async def __aenter__(self) -> AsyncBuffer:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
