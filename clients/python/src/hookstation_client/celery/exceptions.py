"""Errors, with the names and hierarchy of Celery."""

from __future__ import annotations

from datetime import datetime
from typing import Any


class CeleryError(Exception):
    """Base class of all errors of this package."""


class NotCovered(CeleryError, NotImplementedError):
    """A feature of Celery that this package does not support (docs/clients/celery.md)."""

    def __init__(self, what: str, instead: str = "") -> None:
        super().__init__(f"{what} is not supported" + (f": {instead}" if instead else ""))


class ImproperlyConfigured(CeleryError):
    """A setting is missing or invalid."""


class OperationalError(CeleryError):
    """The broker is unavailable; ``__cause__`` is the client's error."""


class TaskPredicate(CeleryError):
    """Base class of errors by which a task decides what happens to its message."""


class Ignore(TaskPredicate):
    """The task ends without storing a state."""


class Reject(TaskPredicate):
    """The message is discarded, or with ``requeue`` returned to the queue."""

    def __init__(self, reason: Any = None, requeue: bool = False) -> None:
        super().__init__(reason, requeue)
        self.reason = reason
        self.requeue = requeue


class Retry(TaskPredicate):
    """The task was sent again as a retry."""

    def __init__(
        self,
        message: str | None = None,
        exc: BaseException | None = None,
        when: datetime | float | None = None,
        is_eager: bool = False,
        sig: Any = None,
    ) -> None:
        super().__init__(message or "the task is retried", exc, when)
        self.message = message
        self.exc = exc
        self.when = when
        self.is_eager = is_eager
        self.sig = sig


class TaskError(CeleryError):
    """Base class of task errors."""


class NotRegistered(KeyError, TaskError):
    """No task of this name is registered."""

    def __str__(self) -> str:
        return f"There is no task {self.args[0]!r}." if self.args else "There is no such task."


class TimeoutError(TaskError):
    """The result did not arrive before the timeout."""


class MaxRetriesExceededError(TaskError):
    """The task failed and has no retries left."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.task_args = kwargs.pop("task_args", ())
        self.task_kwargs = kwargs.pop("task_kwargs", {})
        super().__init__(*args, **kwargs)


class ChordError(TaskError):
    """A task in the header of a chord failed, so the body did not run."""


class TaskRevokedError(TaskError):
    """The task expired before it ran."""
