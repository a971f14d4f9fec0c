"""Restrict django-q2's queue and schedules to the tasks that this project registered.

django-q2 calls any function that a row names and unpickles the contents of its tables, so write
access to one row would allow running code in a worker. Here a queued row contains only the name of
a registered task, and a worker calls no other, whatever the tables contain. Decision 26 has the
details.

`Stop` tells a cluster's workers to finish; it works even if any of them is killed.
"""

import base64
import json
import logging
import os
import pickletools
import secrets
import select
import time
import uuid
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone
from django_q.brokers.orm import ORM
from django_q.conf import Conf
from django_q.models import OrmQ, Schedule, Task
from django_q.signals import pre_enqueue
from django_q.signing import SignedPackage
from django_q.tasks import async_task

from delivery import metrics

logger = logging.getLogger(__name__)

SWEEP = "delivery.cluster.tasks.sweep"
MAIL = "delivery.cluster.tasks.mail"
PIPELINE = "delivery.cluster.tasks.pipeline"
REGISTERED = frozenset({SWEEP, MAIL, PIPELINE})
"""Every task that a worker may call. None takes arguments."""

SCHEDULES = {"hookstation sweeps": (SWEEP, 1), "hookstation pipeline": (PIPELINE, 1)}
"""Name: (task, minutes between runs)."""

SCAN_ROWS = 100
"""Queued rows that ``is_queued`` reads."""

FAILURES_KEPT = timedelta(days=30)
# django-q2 signs the pickles that it passes between its own functions with SECRET_KEY. They never
# leave a process here, so a random key works, and no stored pickle is valid under it.
Conf.SECRET_KEY = secrets.token_urlsafe(50)


class Stop:
    """A flag that is set once, visible in this process and all that it forks.

    Not multiprocessing.Event: a process killed while it checks that keeps its lock, and one killed
    while it waits is waited for; then its siblings, or the process that sets it, block.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def set(self) -> None:
        """Set the flag for good: nothing reads the byte out of the pipe."""
        os.write(self._writer, b".")

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self.wait(0.0)

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, at most so many seconds; return whether it is."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        return bool(poll.poll(max(0.0, seconds) * 1000))


stopping = Stop()
"""Set before anything is told to stop; created before the fork so that every worker has it."""


class TaskBroker(ORM):  # type: ignore[misc]  # it has no types
    """django-q2's ORM broker, for rows that name a registered task.

    The original stores signed pickles, and sleeps up to ``poll`` seconds (settings.Q_CLUSTER) even
    during a stop; here ``dequeue`` returns at once.
    """

    def enqueue(self, task: str) -> Any:
        """Store the name of a package's task; return the row's id, or None if it is rejected."""
        name = SignedPackage.loads(task)["func"]
        if name not in REGISTERED:
            _refuse(name, "it is not registered")
            return None
        return super().enqueue(json.dumps({"task": name}))

    def dequeue(self) -> Any:
        """Return the next tasks as django-q2's packages, or None after ``poll`` seconds."""
        if self.queue_size():
            return [
                (row_id, package)
                for row_id, payload in super().dequeue() or ()
                if (package := self._package(row_id, payload)) is not None
            ]
        if stopping.wait(Conf.POLL):
            time.sleep(0.05)  # until the sentinel has told the pusher as well
        return None

    def _package(self, row_id: int, payload: str) -> str | None:
        """Build a new package from a row, so that nothing else in the row reaches a worker."""
        name = task_of(payload)
        if name not in REGISTERED:
            self.delete(row_id)
            _refuse(name, f"row {row_id} of the queue names no registered task")
            return None
        package: str = SignedPackage.dumps(
            {
                # Random: the row of a failed task is looked up by it.
                "id": uuid.uuid4().hex,
                "name": name.rpartition(".")[2],
                "func": name,
                "args": (),
                "kwargs": {},
                "started": timezone.now(),
                "ack_failure": True,
            }
        )
        return package


def add(name: str) -> None:
    """Make a worker call a registered task."""
    async_task(name)


def is_queued(name: str) -> bool:
    """Whether a task waits or runs: its row is deleted when it has ended."""
    return any(task_of(row.payload) == name for row in OrmQ.objects.order_by("id")[:SCAN_ROWS])


def task_of(payload: str) -> str:
    """Return the task named in a queued row; '' if unreadable, such as a row of django-q2's own."""
    try:
        named = json.loads(payload)
        return str(named["task"]) if set(named) == {"task"} else ""
    except (ValueError, TypeError, RecursionError):
        return ""


def ensure_schedules() -> None:
    """Reset this project's schedules and stop all others; harmless to repeat."""
    with transaction.atomic():
        stop_other_schedules()
        for name, (task, minutes) in SCHEDULES.items():
            first = Schedule.objects.filter(name=name).order_by("pk").first()
            Schedule.objects.filter(name=name).exclude(pk=first and first.pk).delete()
            Schedule.objects.update_or_create(
                name=name,
                defaults={
                    "func": task,
                    "schedule_type": Schedule.MINUTES,
                    "minutes": minutes,
                    "repeats": -1,
                    "args": None,
                    "kwargs": None,
                    "hook": None,
                    "cluster": None,
                    "intended_date_kwarg": None,
                },
            )


def stop_other_schedules() -> int:
    """Stop schedules of others; return how many.

    Arguments that cannot be read end each round of django-q2's scheduler, and with it this
    project's schedules.
    """
    foreign = Schedule.objects.exclude(name__in=SCHEDULES).exclude(repeats=0)
    for name, func in foreign.values_list("name", "func"):
        _refuse(func, f"schedule {name!r} is not one of this project's and was stopped")
    return int(foreign.update(repeats=0))


def forget(now: datetime) -> int:
    """Delete old failures; return how many."""
    count, _ = Task.objects.filter(stopped__lt=now - FAILURES_KEPT).delete()
    return int(count)


def text_of(stored: str) -> str:
    """Return the texts in a stored pickle, such as a traceback, without unpickling it."""
    try:
        steps = pickletools.genops(base64.b64decode(stored, validate=True))
        return "\n".join(argument for _, argument, _ in steps if isinstance(argument, str))
    except Exception:  # whatever pickletools raises for an invalid pickle
        return "It cannot be read."


def _only_the_name(task: dict[str, Any], **_: Any) -> None:
    """Remove options from a new package that would run something else or elsewhere.

    A schedule's row can request a hook, a chain, or running the function where it is queued.
    """
    kept = {"id", "name", "func", "args", "kwargs", "started"}
    for option in set(task) - kept:
        del task[option]
    task["args"], task["kwargs"] = (), {}


pre_enqueue.connect(_only_the_name, dispatch_uid="hookstation")


def _refuse(name: Any, why: str) -> None:
    metrics.TASKS_REFUSED.inc()
    logger.error("a background task was refused: %.200r; %s", name, why)
