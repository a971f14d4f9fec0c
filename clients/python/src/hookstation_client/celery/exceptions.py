"""Errors, with the names and the hierarchy that they have in Celery."""

from __future__ import annotations

from datetime import datetime
from typing import Any


class CeleryError(Exception):
    """Base of all others."""


class NotCovered(CeleryError, NotImplementedError):
    """Celery can do this and Hookstation's look-alike cannot (docs/clients/celery.md)."""

    def __init__(self, what: str, instead: str = "") -> None:
        super().__init__(f"{what} is not supported" + (f": {instead}" if instead else ""))


class ImproperlyConfigured(CeleryError):
    """A setting cannot be used."""


class OperationalError(CeleryError):
    """The broker cannot be reached, or cannot do it now; ``__cause__`` is the client's error."""


class TaskPredicate(CeleryError):
    """Raised by a task to say what shall become of its message."""


class Ignore(TaskPredicate):
    """The task is done and has no state."""


class Reject(TaskPredicate):
    """The message is given up, or with ``requeue`` given back to the queue."""

    def __init__(self, reason: Any = None, requeue: bool = False) -> None:
        super().__init__(reason, requeue)
        self.reason = reason
        self.requeue = requeue


class Retry(TaskPredicate):
    """The task was sent once more."""

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
    """Base of the errors of tasks."""


class NotRegistered(KeyError, TaskError):
    """There is no task of this name."""

    def __str__(self) -> str:
        return f"There is no task {self.args[0]!r}." if self.args else "There is no such task."


class TimeoutError(TaskError):
    """There was no result in time."""


class MaxRetriesExceededError(TaskError):
    """The task was tried again as often as it may be."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.task_args = kwargs.pop("task_args", ())
        self.task_kwargs = kwargs.pop("task_kwargs", {})
        super().__init__(*args, **kwargs)


class ChordError(TaskError):
    """A task in the header of a chord failed, so its body was not run."""


class TaskRevokedError(TaskError):
    """The task expired before it could be run."""
