"""Queue: django-q2's queue and schedules, cut down to the tasks that this project registered.

django-q2 calls any function that a row names, and unpickles what stands in its tables: whoever may
write one row runs code in a worker. Here a queued row names a registered task and nothing else. A
worker calls only those, whatever stands in the tables; decision 26 has the details.

`Stop` is how a cluster tells its workers to finish, which the death of none of them can spoil.
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


class Stop:
    """A flag that is set once, seen by this process and by all that it forks.

    Not multiprocessing.Event: a process that is killed while it asks keeps that one's lock, and one
    that is killed while it waits is waited for; then its siblings, or whoever sets it, stand still.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def set(self) -> None:
        """For good: nobody takes out of the pipe what is put into it here."""
        os.write(self._writer, b".")

    def is_set(self) -> bool:
        """Whether it is."""
        return self.wait(0.0)

    def wait(self, seconds: float) -> bool:
        """Until it is set, or so long; whether it is."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        return bool(poll.poll(max(0.0, seconds) * 1000))


logger = logging.getLogger(__name__)

SWEEP = "delivery.runtime.tasks.sweep"
MAIL = "delivery.runtime.tasks.mail"
PIPELINE = "delivery.runtime.tasks.pipeline"
REGISTERED = frozenset({SWEEP, MAIL, PIPELINE})
"""Every task that a worker may call. None takes arguments."""

SCHEDULES = {"hookstation sweeps": (SWEEP, 1), "hookstation pipeline": (PIPELINE, 1)}
"""Name: (task, minutes between runs)."""

SCAN_ROWS = 100
"""Queued rows that ``is_queued`` reads."""

FAILURES_KEPT = timedelta(days=30)

stopping = Stop()
"""Set once, before anything is told to stop; made before the fork so that every worker has it."""

# django-q2 signs the pickles that it hands from one of its functions to the next with SECRET_KEY.
# Ours never leave a process, so a key that nobody else knows will do, and no stored one opens them.
Conf.SECRET_KEY = secrets.token_urlsafe(50)


class TaskBroker(ORM):  # type: ignore[misc]  # it has no types
    """django-q2's ORM broker, for rows that name a registered task.

    The original stores signed pickles. It also sleeps through a stop, for up to ``poll`` seconds
    (settings.Q_CLUSTER); here ``dequeue`` returns at once.
    """

    def enqueue(self, task: str) -> Any:
        """Store the name of a package's task; returns the row's number, None if it is refused."""
        name = SignedPackage.loads(task)["func"]
        if name not in REGISTERED:
            _refuse(name, "it is not registered")
            return None
        return super().enqueue(json.dumps({"task": name}))

    def dequeue(self) -> Any:
        """The next tasks as django-q2's packages, or None after ``poll`` seconds without any."""
        if self.queue_size():
            return [
                (row_id, package)
                for row_id, payload in super().dequeue() or ()
                if (package := self._package(row_id, payload)) is not None
            ]
        if stopping.wait(Conf.POLL):
            time.sleep(0.05)  # until the pusher hears of it from the sentinel, too
        return None

    def _package(self, row_id: int, payload: str) -> str | None:
        """A package made anew from a row, so that nothing else of the row reaches a worker."""
        name = task_of(payload)
        if name not in REGISTERED:
            self.delete(row_id)
            _refuse(name, f"row {row_id} of the queue names no registered task")
            return None
        package: str = SignedPackage.dumps(
            {
                # Known to nobody in advance: the row of a task that failed is looked up by it.
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
    """Have a worker call a registered task."""
    async_task(name)


def is_queued(name: str) -> bool:
    """Whether a task waits or is at work: its row goes when it has ended."""
    return any(task_of(row.payload) == name for row in OrmQ.objects.order_by("id")[:SCAN_ROWS])


def task_of(payload: str) -> str:
    """What a queued row names; '' when it cannot be read, such as a row of django-q2's own."""
    try:
        named = json.loads(payload)
        return str(named["task"]) if set(named) == {"task"} else ""
    except (ValueError, TypeError, RecursionError):
        return ""


def ensure_schedules() -> None:
    """Reset our schedules and stop all others; harmless to repeat."""
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
    """Stop schedules that are not ours; how many.

    Arguments that cannot be read end each turn of django-q2's scheduler, and with it our schedules.
    """
    others = Schedule.objects.exclude(name__in=SCHEDULES).exclude(repeats=0)
    for name, func in others.values_list("name", "func"):
        _refuse(func, f"schedule {name!r} is none of this project's and was stopped")
    return int(others.update(repeats=0))


def forget(now: datetime) -> int:
    """Delete failures of long ago; how many."""
    count, _ = Task.objects.filter(stopped__lt=now - FAILURES_KEPT).delete()
    return int(count)


def text_of(stored: str) -> str:
    """The texts in a stored pickle, such as a failed task's traceback, without unpickling it."""
    try:
        steps = pickletools.genops(base64.b64decode(stored, validate=True))
        return "\n".join(argument for _, argument, _ in steps if isinstance(argument, str))
    except Exception:  # whatever pickletools makes of what is no pickle
        return "It cannot be read."


def _only_the_name(task: dict[str, Any], **_: Any) -> None:
    """Take from a new package what would run something else or in another place.

    A schedule's row can ask for a hook, a chain, or for its function to be run where it is queued.
    """
    kept = {"id", "name", "func", "args", "kwargs", "started"}
    for option in set(task) - kept:
        del task[option]
    task["args"], task["kwargs"] = (), {}


def _refuse(name: Any, why: str) -> None:
    metrics.TASKS_REFUSED.inc()
    logger.error("a background task was refused: %.200r; %s", name, why)


pre_enqueue.connect(_only_the_name, dispatch_uid="hookstation")
