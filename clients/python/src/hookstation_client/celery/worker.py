"""The worker: ``hookstation-worker -A app`` receives tasks and runs them in threads.

The worker acknowledges a task when its result is stored. It extends the lease while the task runs,
so that no other worker receives a long task. When a worker is killed, other workers receive its
tasks after their leases end. After ``SIGTERM`` or ``SIGINT`` the worker finishes its running tasks
and ends; a second signal ends it at once.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from typing import Any, Callable

from hookstation_client import Delivery
from hookstation_client.celery.app import BACK_IN_S, CONSUMER, Celery
from hookstation_client.celery.exceptions import NotRegistered, Reject
from hookstation_client.errors import (
    ConnectionFailed,
    HookstationError,
    RateLimited,
    Unavailable,
)
from hookstation_client.stopping import wait_until_set

logger = logging.getLogger("hookstation_client.celery")

LEASE_S = 60
LONGEST_LEASE_S = 43_200
WAIT_S = 5
"""Seconds for which a receive call waits. Stopping may take as long."""
PAUSE_S = 1.0
"""Seconds to wait after a failed call."""
_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/([smh]))?")
_UNITS = {"s": 1, "m": 60, "h": 3600, None: 1}


class Worker:
    """Receives tasks from queues, and runs up to ``concurrency`` of them at a time."""

    def __init__(
        self,
        app: Celery,
        queues: list[str] | None = None,
        concurrency: int | None = None,
        hostname: str | None = None,
    ) -> None:
        self.app = app
        self.queues = queues or [app.conf.task_default_queue]
        self.concurrency = concurrency or app.conf.worker_concurrency
        self.hostname = hostname or f"worker@{socket.gethostname()}"
        seconds = app.conf.broker_transport_options.get("visibility_timeout", LEASE_S)
        self.lease_s = int(min(LONGEST_LEASE_S, max(1, seconds)))
        self._is_stopping = threading.Event()
        self._free = threading.Condition()
        self._running = 0
        self._held: dict[str, Delivery] = {}
        self._limits: dict[str, RateLimit] = {}

    def run(self) -> None:
        """Run until `stop`; return when the running tasks have ended."""
        if not self.insist(self._declare):
            return
        fetching = [
            threading.Thread(target=self._fetch, args=[queue], name=f"fetch {queue}", daemon=True)
            for queue in self.queues
        ]
        for thread in fetching:
            thread.start()
        beating = threading.Thread(target=self._extend, name="leases", daemon=True)
        beating.start()
        logger.info("%s is ready: %s", self.hostname, ", ".join(self.queues))
        wait_until_set(self._is_stopping)
        for thread in fetching:
            thread.join()
        with self._free:
            self._free.wait_for(lambda: not self._running)
        logger.info("%s has ended", self.hostname)

    def stop(self) -> None:
        """Stop receiving, and release received tasks that have not begun."""
        self._is_stopping.set()

    def _declare(self) -> None:
        for queue in self.queues:
            self.app.declare(queue)

    def insist(self, begin: Callable[[], Any]) -> bool:
        """Call ``begin`` until it succeeds, retrying while the broker is unavailable.

        Returns false if the worker is stopped first. Raises other errors of the client.
        """
        while not self._is_stopping.is_set():
            try:
                begin()
                return True
            except (ConnectionFailed, RateLimited, Unavailable) as error:
                logger.warning("The broker is unavailable, retrying: %s", error)
                wait_until_set(self._is_stopping, error.retry_after or PAUSE_S)
        return False

    def _fetch(self, queue: str) -> None:
        """Receive as many tasks as there are free threads, and start them."""
        while not self._is_stopping.is_set():
            with self._free:
                free = self._wait_for_free()
            try:
                found = self.app.client.receive_batch(
                    queue,
                    CONSUMER,
                    max=max(1, min(free, 100)),
                    wait=WAIT_S,
                    lease=self.lease_s,
                    worker_id=f"{self.hostname}:{os.getpid()}"[:64],
                )
            except HookstationError as error:
                logger.warning("Queue %s: %s", queue, error)
                self._is_stopping.wait(error.retry_after or PAUSE_S)
                continue
            with self._free:
                self._held.update((delivery.lease, delivery) for delivery in found)
            for delivery in found:
                self._start(queue, delivery)

    def _wait_for_free(self) -> int:
        """Wait for free threads or for `stop`; return their number. The caller holds the lock."""
        while self._running >= self.concurrency and not self._is_stopping.is_set():
            self._free.wait(1.0)
        return self.concurrency - self._running

    def _start(self, queue: str, delivery: Delivery) -> None:
        """Run a task when a thread is free; another queue may have taken the thread."""
        with self._free:
            self._wait_for_free()
            is_late = self._is_stopping.is_set()
            self._running += 1
        target = self._give_back if is_late else self._work
        thread = threading.Thread(target=self._occupy, args=[target, queue, delivery], daemon=True)
        thread.start()

    def _occupy(self, target: Any, queue: str, delivery: Delivery) -> None:
        try:
            target(queue, delivery)
        except HookstationError as error:
            # The lease ended or the broker is unavailable: the message is delivered again.
            logger.warning("Message %s: %s", delivery.id, error)
        except Exception:
            logger.exception("Message %s could not be settled", delivery.id)
        finally:
            with self._free:
                self._running -= 1
                self._held.pop(delivery.lease, None)
                self._free.notify_all()

    def _give_back(self, queue: str, delivery: Delivery) -> None:
        delivery.release()

    def _work(self, queue: str, delivery: Delivery) -> None:
        """Run one task and settle its message."""
        if not self._wait_for_rate(delivery):
            return self._give_back(queue, delivery)
        is_early = self.app.acks_early(delivery.body)
        if is_early:
            delivery.ack()
        try:
            self._run(queue, delivery)
        except Reject as rejected:
            logger.warning("Message %s is rejected: %r", delivery.id, rejected.reason)
            if not is_early:
                delivery.release() if rejected.requeue else delivery.ack()
        except (NotRegistered, ValueError) as error:
            logger.error("Message %s: %s", delivery.id, error)
            if not is_early:
                delivery.nack(delay=BACK_IN_S, error=str(error))
        else:
            if not is_early:
                delivery.ack()

    def _run(self, queue: str, delivery: Delivery) -> None:
        _close_old_connections()
        try:
            self.app.run_message(
                delivery.body,
                delivery.id,
                hostname=self.hostname,
                delivery_info={
                    "routing_key": queue,
                    "exchange": "",
                    "priority": self.app.conf.priority_of_broker(delivery.priority),
                    "redelivered": delivery.attempt > 1,
                },
            )
        finally:
            _close_old_connections()

    def _wait_for_rate(self, delivery: Delivery) -> bool:
        """Wait until the task's ``rate_limit`` permits it; return false if the worker stops."""
        limit = self._limit_of(delivery)
        while limit is not None and (seconds := limit.wait_s()):
            if self._is_stopping.wait(seconds):
                return False
        return True

    def _limit_of(self, delivery: Delivery) -> RateLimit | None:
        task = self.app.task_of(delivery.body)
        rate = task.rate_limit if task and task.rate_limit is not None else None
        rate = self.app.conf.task_default_rate_limit if rate is None else rate
        if task is None or not rate:
            return None
        with self._free:
            return self._limits.setdefault(task.name, RateLimit(rate))

    def _extend(self) -> None:
        """Extend all leases, three times per lease duration."""
        while True:
            time.sleep(self.lease_s / 3)
            with self._free:
                held = list(self._held.values())
            for start in range(0, len(held), 100):
                try:
                    self.app.client.extend(held[start : start + 100], self.lease_s)
                except HookstationError as error:
                    logger.warning("Leases could not be extended: %s", error)


class RateLimit:
    """Limits this worker to a number of tasks per second, minute or hour, as in Celery."""

    def __init__(self, rate: str | float) -> None:
        matched = _RATE.fullmatch(str(rate))
        if matched is None:
            raise ValueError(
                f"rate_limit={rate!r} is invalid, expected 10, '10/s', '10/m' or '10/h'."
            )
        number, unit = matched.groups()
        self._interval = _UNITS[unit] / float(number)
        self._next = 0.0
        self._lock = threading.Lock()

    def wait_s(self) -> float:
        """Take a place and return 0, or return the seconds until the next task may start."""
        with self._lock:
            now = time.monotonic()
            if now < self._next:
                return self._next - now
            self._next = now + self._interval
            return 0.0


def find_app(name: str) -> Celery:
    """Return the application that ``-A`` names: ``module:name``, or a module with ``app``."""
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    if attribute:
        return _checked(getattr(found, attribute), name)
    for candidate in ("app", "celery"):
        value = getattr(found, candidate, None)
        if isinstance(value, Celery):
            return value
    for value in vars(found).values():
        if isinstance(value, Celery):
            return value
    if hasattr(found, "__path__"):
        return find_app(f"{module}.celery")
    raise SystemExit(f"{name} contains no Celery application.")


def main(arguments: list[str] | None = None) -> int:
    """The command ``hookstation-worker``."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=options.loglevel.upper(),
        format="[%(asctime)s: %(levelname)s/%(threadName)s] %(message)s",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    sys.path.insert(0, os.getcwd())
    app = find_app(options.app)
    _set_up_django()
    app.finalize()
    queues = [name.strip() for name in options.queues.split(",")] if options.queues else None
    worker = Worker(app, queues, options.concurrency, options.hostname)

    def end(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        worker.stop()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    if options.beat:
        worker.insist(app.put_beat_schedule)
    worker.run()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "hookstation-worker", description="Run the tasks of a Celery application."
    )
    parser.add_argument("-A", "--app", required=True, help="module, or module:name")
    parser.add_argument("-Q", "--queues", help="names, separated by commas")
    parser.add_argument("-c", "--concurrency", type=int, help="number of threads that run tasks")
    parser.add_argument("-n", "--hostname", help="name of the worker")
    parser.add_argument("-l", "--loglevel", default="WARNING")
    parser.add_argument(
        "-B", "--beat", action="store_true", help="write beat_schedule to the broker's schedules"
    )
    return parser


def _checked(found: Any, name: str) -> Celery:
    if not isinstance(found, Celery):
        raise SystemExit(f"{name} is not a Celery application.")
    return found


def _set_up_django() -> None:
    """Set up Django if ``DJANGO_SETTINGS_MODULE`` is set, as Celery does."""
    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        import django  # noqa: PLC0415 - only Django applications have it

        django.setup()


def _close_old_connections() -> None:
    """Close broken database connections of this thread, before and after a task."""
    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        from django.db import close_old_connections  # noqa: PLC0415 - as above

        close_old_connections()
