"""Workers of a pull consumer: receive, call a handler, settle; leases are extended meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hookstation_client.client import AsyncDelivery, AsyncHookstation, Delivery, Hookstation
from hookstation_client.errors import (
    ConnectionFailed,
    HookstationError,
    LeaseLost,
    RateLimited,
    Reject,
    Retry,
    Unavailable,
)
from hookstation_client.models import ReceivedMessage, Settled
from hookstation_client.operations import MAX_LEASES

logger = logging.getLogger("hookstation_client.worker")

CONCURRENCY = 8
LEASE_S = 30
WAIT_S = 5.0
"""Seconds that one call waits for messages: so long the end of a worker may take, too."""
SHUTDOWN_TIMEOUT_S = 30.0
AFTER_FAILURE_S = 2.0
"""Pause after a call that failed in spite of its retries."""

_PASSING = (ConnectionFailed, RateLimited, Unavailable)
"""Errors that end by themselves; any other ends the worker."""


class _Common:
    """The settings of a worker and the messages that it holds."""

    def __init__(
        self,
        channel: str,
        consumer: str,
        *,
        concurrency: int,
        lease: int,
        wait: float,
        shutdown_timeout: float,
        worker_id: str | None,
        resume: bool,
        sticky: bool,
    ) -> None:
        self.channel = channel
        self.consumer = consumer
        self.concurrency = concurrency
        self.lease = lease
        self.wait = wait
        self.shutdown_timeout = shutdown_timeout
        self.worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}"[:64]
        self.resume = resume
        self.sticky = sticky
        self._held: dict[str, ReceivedMessage] = {}

    def _options(self, free: int) -> dict[str, Any]:
        return {
            "max": min(free, MAX_LEASES),
            "wait": self.wait,
            "lease": self.lease,
            "worker_id": self.worker_id,
            "resume": self.resume,
            "keys": "sticky" if self.sticky else None,
        }

    def _leases(self) -> Iterator[list[str]]:
        held = list(self._held)
        for start in range(0, len(held), MAX_LEASES):
            yield held[start : start + MAX_LEASES]

    def _note_lost(self, extended: Settled) -> None:
        for lease, reason in extended.failed.items():
            lost = self._held.pop(lease, None)
            if lost is not None:
                logger.warning("the lease of %s cannot be extended: %s", lost.id, reason)


class Worker(_Common):
    """Runs ``handler(delivery)`` for each message of a pull consumer, in threads (S0-67).

    When the handler returns, the message is acknowledged. `Retry` lets it come again after its
    time, `Reject` makes it a dead letter at once, any other exception is a failed attempt. Leases
    are extended as long as the handler runs.
    At most ``concurrency`` messages are held at a time.

    `run` ends after SIGTERM, SIGINT or `stop`: it receives no more, and waits up to
    ``shutdown_timeout`` seconds for the handlers that run. The messages of those that do not end
    come back when their leases end. A second signal acts as if there were no worker.

    ``lease`` and ``wait`` are seconds. With ``resume`` the worker begins with what a former worker
    of the same ``worker_id`` held when it died. With ``sticky`` messages of an ordering key go to
    the same worker.
    """

    def __init__(
        self,
        client: Hookstation,
        channel: str,
        consumer: str,
        handler: Callable[[Delivery], Any],
        *,
        concurrency: int = CONCURRENCY,
        lease: int = LEASE_S,
        wait: float = WAIT_S,
        shutdown_timeout: float = SHUTDOWN_TIMEOUT_S,
        worker_id: str | None = None,
        resume: bool = False,
        sticky: bool = False,
    ) -> None:
        super().__init__(
            channel,
            consumer,
            concurrency=concurrency,
            lease=lease,
            wait=wait,
            shutdown_timeout=shutdown_timeout,
            worker_id=worker_id,
            resume=resume,
            sticky=sticky,
        )
        self.client = client
        self.handler = handler
        self._changed = threading.Condition()
        self._running = 0
        self._stopping = threading.Event()

    def run(self) -> None:
        """Work until a signal or `stop`. Raises an error that does not end by itself."""
        ended = threading.Event()
        heartbeat = threading.Thread(target=self._extend_leases, args=(ended,), daemon=True)
        heartbeat.start()
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="hookstation-worker")
        try:
            with self._signals():
                while not self._stopping.is_set():
                    self._receive(pool)
        finally:
            self._finish()
            pool.shutdown(wait=False)
            ended.set()
            heartbeat.join()

    def stop(self) -> None:
        """Receive no more. May be called by any thread, by a handler, and by a signal handler."""
        self._stopping.set()

    def _receive(self, pool: ThreadPoolExecutor) -> None:
        with self._changed:
            free = self.concurrency - self._running
            if not free:
                # A signal handler cannot notify: it might interrupt whoever holds the lock.
                self._changed.wait(timeout=0.5)
                return
        try:
            received = self.client.receive_batch(self.channel, self.consumer, **self._options(free))
        except _PASSING as error:
            logger.warning("cannot receive: %s", error)
            self._stopping.wait(AFTER_FAILURE_S)
            return
        self.resume = False
        if self._stopping.is_set():
            if received:
                self._say(lambda: self.client.release(received))
            return
        for delivery in received:
            with self._changed:
                self._running += 1
            self._held[delivery.lease] = delivery
            pool.submit(self._handle, delivery)

    def _handle(self, delivery: Delivery) -> None:
        settle: Callable[[], Any] = delivery.ack
        try:
            self.handler(delivery)
        except BaseException as error:
            refused = refusal(delivery, error)

            def settle() -> None:
                delivery.nack(**refused)

        try:
            self._held.pop(delivery.lease, None)
            self._say(settle)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify()

    def _say(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except LeaseLost as error:
            logger.warning("%s", error)
        except HookstationError as error:
            logger.warning("cannot settle, the message comes again: %s", error)

    def _extend_leases(self, ended: threading.Event) -> None:
        while not ended.wait(self.lease / 3):
            for leases in self._leases():
                try:
                    self._note_lost(self.client.extend(leases, self.lease))
                except HookstationError as error:
                    logger.warning("cannot extend leases: %s", error)

    def _finish(self) -> None:
        end = time.monotonic() + self.shutdown_timeout
        with self._changed:
            while self._running and time.monotonic() < end:
                self._changed.wait(timeout=0.5)
            if self._running:
                logger.warning("%d handlers did not end in time", self._running)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT, where this thread may say so."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def stop(number: int, frame: Any) -> None:
            self.stop()
            restore()

        for number in before:
            signal.signal(number, stop)
        try:
            yield
        finally:
            restore()


class AsyncWorker(_Common):
    """The same for asyncio: ``await handler(delivery)`` in a task for each message."""

    def __init__(
        self,
        client: AsyncHookstation,
        channel: str,
        consumer: str,
        handler: Callable[[AsyncDelivery], Awaitable[Any]],
        *,
        concurrency: int = CONCURRENCY,
        lease: int = LEASE_S,
        wait: float = WAIT_S,
        shutdown_timeout: float = SHUTDOWN_TIMEOUT_S,
        worker_id: str | None = None,
        resume: bool = False,
        sticky: bool = False,
    ) -> None:
        super().__init__(
            channel,
            consumer,
            concurrency=concurrency,
            lease=lease,
            wait=wait,
            shutdown_timeout=shutdown_timeout,
            worker_id=worker_id,
            resume=resume,
            sticky=sticky,
        )
        self.client = client
        self.handler = handler
        self._stopping: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Work until a signal or `stop`. Raises an error that does not end by itself."""
        # Made here: before Python 3.10 an event belongs to the loop in which it was made.
        self._stopping = asyncio.Event()
        heartbeat = asyncio.create_task(self._extend_leases())
        try:
            with self._signals():
                while not self._stopping.is_set():
                    await self._receive(self._stopping)
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self.shutdown_timeout)
            if self._tasks:
                logger.warning("%d handlers did not end in time", len(self._tasks))
                for task in self._tasks:
                    task.cancel()
            heartbeat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await heartbeat

    def stop(self) -> None:
        """Receive no more."""
        if self._stopping is not None:
            self._stopping.set()

    async def _receive(self, stopping: asyncio.Event) -> None:
        free = self.concurrency - len(self._tasks)
        if not free:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0.5)
            return
        try:
            received = await self.client.receive_batch(
                self.channel, self.consumer, **self._options(free)
            )
        except _PASSING as error:
            logger.warning("cannot receive: %s", error)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stopping.wait(), AFTER_FAILURE_S)
            return
        self.resume = False
        if stopping.is_set():
            if received:
                await self._say(self.client.release(received))
            return
        for delivery in received:
            self._held[delivery.lease] = delivery
            task = asyncio.create_task(self._handle(delivery))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _handle(self, delivery: AsyncDelivery) -> None:
        refused = None
        try:
            await self.handler(delivery)
        except asyncio.CancelledError:
            # Not the message's fault; it comes back when its lease ends.
            self._held.pop(delivery.lease, None)
            raise
        except Exception as error:
            refused = refusal(delivery, error)
        self._held.pop(delivery.lease, None)
        if refused is None:
            await self._say(delivery.ack())
        else:
            await self._say(delivery.nack(**refused))

    async def _say(self, call: Awaitable[Any]) -> None:
        try:
            await call
        except LeaseLost as error:
            logger.warning("%s", error)
        except HookstationError as error:
            logger.warning("cannot settle, the message comes again: %s", error)

    async def _extend_leases(self) -> None:
        while True:
            await asyncio.sleep(self.lease / 3)
            for leases in self._leases():
                try:
                    self._note_lost(await self.client.extend(leases, self.lease))
                except HookstationError as error:
                    logger.warning("cannot extend leases: %s", error)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT, where the loop may listen to them."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)

        def restore() -> None:
            for number in numbers:
                loop.remove_signal_handler(number)

        def stop() -> None:
            self.stop()
            restore()

        try:
            for number in numbers:
                loop.add_signal_handler(number, stop)
        except (NotImplementedError, RuntimeError, ValueError):
            # Windows, and loops outside of the main thread.
            yield
            return
        try:
            yield
        finally:
            restore()


def refusal(message: ReceivedMessage, error: BaseException) -> dict[str, Any]:
    """The arguments of the `nack` after a handler raised ``error``."""
    if isinstance(error, Retry):
        return {"delay": math.ceil(error.after), "error": str(error)}
    if isinstance(error, Reject):
        logger.warning("%s is rejected: %s", message.id, error)
        return {"error": str(error), "final": True}
    logger.error("the handler of %s failed", message.id, exc_info=error)
    return {"error": f"{type(error).__name__}: {error}"}
