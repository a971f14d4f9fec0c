"""Workers of a pull consumer: receive, call a handler, extend leases, settle."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

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
from hookstation_client.stopping import wait_until_set
from hookstation_client.streaming import STREAM_RETRY_S, streams_of

if TYPE_CHECKING:
    from hookstation_client.grpc.working import Streams, WorkerStream

logger = logging.getLogger("hookstation_client.worker")

CONCURRENCY = 8
LEASE_S = 30
WAIT_S = 5.0
"""Seconds for which one call waits for messages. Stopping may take as long."""
SHUTDOWN_TIMEOUT_S = 30.0
AFTER_FAILURE_S = 2.0
"""Seconds to wait after a receive call whose retries failed."""

_PASSING = (ConnectionFailed, RateLimited, Unavailable)
"""Temporary errors; any other error ends the worker."""


class _Common:
    """The settings of a worker and the messages that it has leased."""

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
        self._stream: WorkerStream | None = None
        self._stream_at = 0.0
        """When a stream is tried again, by the monotonic clock."""

    def _options(self, free: int) -> dict[str, Any]:
        return {
            "max": min(free, MAX_LEASES),
            "wait": self.wait,
            "lease": self.lease,
            "worker_id": self.worker_id,
            "resume": self.resume,
            "keys": "sticky" if self.sticky else None,
        }

    def _subscription(self) -> dict[str, Any]:
        return {
            "channel": self.channel,
            "consumer": self.consumer,
            "lease_s": self.lease,
            "worker_id": self.worker_id,
            "resume": self.resume,
            "sticky": self.sticky,
        }

    def _check_stream(self, stream: WorkerStream) -> None:
        """Use the REST API for a while after a stream has ended. Raises what does not pass."""
        self._stream_at = time.monotonic() + STREAM_RETRY_S
        failure = stream.failure
        if failure is None:
            logger.info("the broker ended the stream, using the REST API")
        elif stream.is_open or isinstance(failure, _PASSING):
            # A stream that was accepted ends with a settlement that is refused, too.
            logger.warning("the stream ended, using the REST API: %s", failure)
        else:
            raise failure

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

    When the handler returns, the worker acknowledges the message. If the handler raises `Retry`,
    the message is delivered again after that time; after `Reject` it is a dead letter at once; any
    other exception is a failed attempt. The worker extends the lease while the handler runs. It
    leases at most ``concurrency`` messages at a time.

    `run` ends after SIGTERM, SIGINT or `stop`: it receives no more messages, and waits up to
    ``shutdown_timeout`` seconds for running handlers. Messages of handlers that do not end in time
    are delivered again when their leases end. A second signal has its default effect.

    If the client has the address of a gRPC server (``grpc``) and grpcio is installed, the worker
    receives and settles messages over one stream. While it cannot reach that server, it uses the
    REST API.

    ``lease`` and ``wait`` are in seconds. With ``resume`` the worker first receives the messages
    that a killed worker with the same ``worker_id`` had leased. With ``sticky`` messages of an
    ordering key go to the same worker.
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
        """Guards the attributes below."""
        self._running = 0
        self._freed = 0
        """Messages that the stream may bring because as many others have ended."""
        self._stopping = threading.Event()

    def run(self) -> None:
        """Run until a signal or `stop`. Raises errors that are not temporary."""
        ended = threading.Event()
        heartbeat = threading.Thread(target=self._extend_leases, args=(ended,), daemon=True)
        heartbeat.start()
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="hookstation-worker")
        try:
            with self._signals(), streams_of(self.client.grpc) as streams:
                try:
                    while not self._stopping.is_set():
                        if streams is not None and time.monotonic() >= self._stream_at:
                            self._receive_stream(streams, pool)
                        else:
                            self._receive(pool)
                finally:
                    self._finish()
                    self._end_stream()
        finally:
            pool.shutdown(wait=False)
            ended.set()
            heartbeat.join()

    def stop(self) -> None:
        """Stop receiving. Any thread, a handler and a signal handler may call it."""
        self._stopping.set()

    def _receive(self, pool: ThreadPoolExecutor) -> None:
        with self._changed:
            free = self.concurrency - self._running
            if not free:
                # `stop` cannot notify: a signal handler may interrupt the thread with the lock.
                self._changed.wait(timeout=0.5)
                return
        try:
            received = self.client.receive_batch(self.channel, self.consumer, **self._options(free))
        except _PASSING as error:
            logger.warning("cannot receive: %s", error)
            wait_until_set(self._stopping, AFTER_FAILURE_S)
            return
        self.resume = False
        if self._stopping.is_set():
            if received:
                self._say(lambda: self.client.release(received))
            return
        for delivery in received:
            self._start(pool, delivery)

    def _receive_stream(self, streams: Streams, pool: ThreadPoolExecutor) -> None:
        """Receive over a stream until it ends, the broker stops or this worker does."""
        with self._changed:
            self._freed = 0
            stream = self._stream = streams.open(
                self.client.key,
                self._subscription(),
                credits=self.concurrency - self._running,
                take=lambda fields: self._take(pool, fields),
                lost=self._note_lost,
                changed=self._notify,
            )
        with self._changed:
            while not (self._stopping.is_set() or stream.is_over):
                # This thread grants all credits: it runs the signal handlers, so that no credit
                # follows a signal.
                if self._freed:
                    stream.grant(self._freed)
                    self._freed = 0
                # A signal handler cannot notify: it might interrupt whoever holds the lock.
                self._changed.wait(timeout=0.5)
        self.resume = self.resume and not stream.is_open
        if not self._stopping.is_set():
            self._end_stream()
            self._check_stream(stream)

    def _take(self, pool: ThreadPoolExecutor, fields: dict[str, Any]) -> None:
        delivery = Delivery(client=self.client, **fields)
        if self._stopping.is_set():
            self._settle(delivery, "release")
            return
        if delivery.body_url:
            try:
                delivery.body = self.client.body(delivery.id)
            except HookstationError as error:
                logger.warning("cannot get the body of %s: %s", delivery.id, error)
                self._settle(delivery, "release")
                with self._changed:
                    self._freed += 1
                    self._changed.notify()
                return
        self._start(pool, delivery)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify()

    def _end_stream(self) -> None:
        """Settle over the REST API what the stream has not settled."""
        with self._changed:
            stream, self._stream = self._stream, None
        for action, leases, options in stream.end() if stream is not None else ():
            self._say(functools.partial(getattr(self.client, action), leases, **options))

    def _start(self, pool: ThreadPoolExecutor, delivery: Delivery) -> None:
        with self._changed:
            self._running += 1
        self._held[delivery.lease] = delivery
        pool.submit(self._handle, delivery)

    def _handle(self, delivery: Delivery) -> None:
        action, refused = "ack", dict[str, Any]()
        try:
            self.handler(delivery)
        except BaseException as error:
            action, refused = "nack", refusal(delivery, error)
        try:
            self._held.pop(delivery.lease, None)
            self._settle(delivery, action, **refused)
        finally:
            with self._changed:
                self._running -= 1
                self._freed += 1
                self._changed.notify()

    def _settle(self, delivery: Delivery, action: str, **options: Any) -> None:
        with self._changed:
            if self._stream is not None and not self._stream.has_ended:
                self._stream.settle(action, delivery.lease, **options)
                return
        self._say(lambda: getattr(delivery, action)(**options))

    def _say(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except LeaseLost as error:
            logger.warning("%s", error)
        except HookstationError as error:
            logger.warning("cannot settle, the message will be delivered again: %s", error)

    def _extend_leases(self, ended: threading.Event) -> None:
        while not ended.wait(self.lease / 3):
            for leases in self._leases():
                with self._changed:
                    if self._stream is not None and not self._stream.has_ended:
                        self._stream.settle("extend", *leases, lease=self.lease)
                        continue
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
        """Stop at SIGTERM and SIGINT, if this is the main thread."""
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
    """`Worker` for asyncio: awaits ``handler(delivery)`` in a task for each message."""

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
        """Run until a signal or `stop`. Raises errors that are not temporary."""
        # Created here: before Python 3.10 an event belongs to the loop that is current then.
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        heartbeat = asyncio.create_task(self._extend_leases())
        try:
            with self._signals(), streams_of(self.client.grpc) as streams:
                try:
                    while not self._stopping.is_set():
                        if streams is not None and time.monotonic() >= self._stream_at:
                            await self._receive_stream(streams, self._stopping)
                        else:
                            await self._receive(self._stopping)
                finally:
                    await self._finish()
                    await self._end_stream()
        finally:
            heartbeat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await heartbeat

    def stop(self) -> None:
        """Stop receiving."""
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
            self._start(delivery)

    async def _receive_stream(self, streams: Streams, stopping: asyncio.Event) -> None:
        """Receive over a stream until it ends, the broker stops or this worker does."""
        changed = asyncio.Event()

        def in_loop(call: Callable[..., Any]) -> Callable[..., None]:
            return lambda *given: self._in_loop(call, *given)

        stream = self._stream = streams.open(
            self.client.key,
            self._subscription(),
            credits=self.concurrency - len(self._tasks),
            take=in_loop(self._take),
            lost=in_loop(self._note_lost),
            changed=in_loop(changed.set),
        )
        stopped = asyncio.create_task(stopping.wait())
        try:
            while not (stopping.is_set() or stream.is_over):
                waiting = asyncio.create_task(changed.wait())
                await asyncio.wait({waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        finally:
            stopped.cancel()
        self.resume = self.resume and not stream.is_open
        if not stopping.is_set():
            await self._end_stream()
            self._check_stream(stream)

    def _in_loop(self, call: Callable[..., Any], *given: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the worker with it
            self._loop.call_soon_threadsafe(call, *given)

    def _take(self, fields: dict[str, Any]) -> None:
        delivery = AsyncDelivery(client=self.client, **fields)
        if self._stream is None or self._stopping is None or self._stopping.is_set():
            task = asyncio.create_task(self._settle(delivery, "release"))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._start(delivery)

    async def _finish(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.shutdown_timeout)
        if self._tasks:
            logger.warning("%d handlers did not end in time", len(self._tasks))
            for task in self._tasks:
                task.cancel()

    async def _end_stream(self) -> None:
        """Settle over the REST API what the stream has not settled."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        for action, leases, options in await self._loop.run_in_executor(None, list, stream.end()):
            await self._say(getattr(self.client, action)(leases, **options))

    def _start(self, delivery: AsyncDelivery) -> None:
        self._held[delivery.lease] = delivery
        task = asyncio.create_task(self._handle(delivery))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        is_stopping = self._stopping is None or self._stopping.is_set()
        if self._stream is not None and not is_stopping:
            self._stream.grant(1)

    async def _handle(self, delivery: AsyncDelivery) -> None:
        action, refused = "ack", {}
        try:
            if delivery.body_url and not delivery.body:
                delivery.body = await self.client.body(delivery.id)
            await self.handler(delivery)
        except asyncio.CancelledError:
            # Not a failure of the message: it is delivered again when its lease ends.
            self._held.pop(delivery.lease, None)
            raise
        except Exception as error:
            action, refused = "nack", refusal(delivery, error)
        self._held.pop(delivery.lease, None)
        await self._settle(delivery, action, **refused)

    async def _settle(self, delivery: AsyncDelivery, action: str, **options: Any) -> None:
        if self._stream is not None and not self._stream.has_ended:
            self._stream.settle(action, delivery.lease, **options)
        else:
            await self._say(getattr(delivery, action)(**options))

    async def _say(self, call: Awaitable[Any]) -> None:
        try:
            await call
        except LeaseLost as error:
            logger.warning("%s", error)
        except HookstationError as error:
            logger.warning("cannot settle, the message will be delivered again: %s", error)

    async def _extend_leases(self) -> None:
        while True:
            await asyncio.sleep(self.lease / 3)
            for leases in self._leases():
                if self._stream is not None and not self._stream.has_ended:
                    self._stream.settle("extend", *leases, lease=self.lease)
                    continue
                try:
                    self._note_lost(await self.client.extend(leases, self.lease))
                except HookstationError as error:
                    logger.warning("cannot extend leases: %s", error)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT, if the loop supports signal handlers."""
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
            # Windows, and loops that do not run in the main thread.
            yield
            return
        try:
            yield
        finally:
            restore()


def refusal(message: ReceivedMessage, error: BaseException) -> dict[str, Any]:
    """Return the arguments of `nack` for an error that a handler raised."""
    if isinstance(error, Retry):
        return {"delay": math.ceil(error.after), "error": str(error)}
    if isinstance(error, Reject):
        logger.warning("%s is rejected: %s", message.id, error)
        return {"error": str(error), "final": True}
    logger.error("the handler of %s failed", message.id, exc_info=error)
    return {"error": f"{type(error).__name__}: {error}"}
