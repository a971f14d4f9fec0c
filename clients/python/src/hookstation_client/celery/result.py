"""Store the results of tasks, and wait for them.

A result is a message on a channel without consumers, ``<task_default_queue>-results``. Its
idempotency key is the task's id. So if a task runs twice, only its first result is stored, and a
look-up by key finds it (docs/api.md, "Messages"). The channel's idempotency window is
``result_expires``; older results are not found.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Callable

from hookstation_client.celery.exceptions import NotCovered, TimeoutError
from hookstation_client.celery.protocol import decode, encode
from hookstation_client.errors import BadRequest, Conflict, NotFound

if TYPE_CHECKING:
    from hookstation_client.celery.app import Celery

PENDING, SUCCESS, FAILURE = "PENDING", "SUCCESS", "FAILURE"
RETRY, REVOKED, IGNORED, REJECTED = "RETRY", "REVOKED", "IGNORED", "REJECTED"
FIRST_LOOK_S, LONGEST_LOOK_S = 0.01, 0.5
"""First and longest interval in seconds between the polls of a waiting caller."""
DAY_S = 86_400


class Results:
    """The result channel."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._is_declared = False

    @property
    def channel(self) -> str:
        """The channel's name."""
        return f"{self._app.conf.task_default_queue}-results"

    def store(self, task_id: str, status: str, result: Any, trace: str | None, **more: Any) -> None:
        """Store the result of a task, unless it has one."""
        value = _encoded(result) if isinstance(result, BaseException) else result
        found = {"task_id": task_id, "status": status, "result": value, "traceback": trace, **more}
        found["date_done"] = datetime.now(timezone.utc).isoformat()
        try:
            self._publish(task_id, encode(found))
        except BadRequest as error:
            if error.code != "body_too_large" or status == FAILURE:
                raise
            self.store(task_id, FAILURE, ValueError(f"The result is too large: {error}"), None)

    def forget(self, task_id: str) -> None:
        """Mark the result of a task as forgotten, so that `read` returns None."""
        self._publish(_forgotten(task_id), b"{}")

    def is_stored(self, task_id: str) -> bool:
        """Return whether the task has a result."""
        return self._message_id(task_id) is not None

    def read(self, task_id: str) -> dict[str, Any] | None:
        """Return the result of a task, or None if it has none yet."""
        message_id = self._message_id(task_id)
        if message_id is None or self._message_id(_forgotten(task_id)) is not None:
            return None
        found: dict[str, Any] = decode(self._app.client.body(message_id))
        return found

    def _message_id(self, key: str) -> str | None:
        try:
            found = next(iter(self._app.client.messages(self.channel, id=key)), None)
        except NotFound:
            return None
        return str(found["id"]) if found else None

    def _publish(self, key: str, body: bytes) -> None:
        if not self._is_declared:
            self._declare()
        try:
            self._app.client.publish(self.channel, body, id=key, content_type="application/json")
        except Conflict as error:
            # An earlier run of the task stored another result.
            if error.code != "idempotency_conflict":
                raise

    def _declare(self) -> None:
        """Create the channel. An existing one keeps its settings."""
        try:
            self._app.client.channel(self.channel)
        except NotFound:
            seconds = self._app.conf.seconds_of("result_expires")
            self._app.client.create_channel(
                self.channel,
                description="Results of tasks (hookstation_client.celery)",
                idempotency_window_s=min(31 * DAY_S, max(1, round(seconds))),
                retention_days=max(1, -(-round(seconds) // DAY_S)),
            )
        self._is_declared = True


class AsyncResult:
    """The result of a task, which may not be ready yet."""

    def __init__(
        self, id: str, backend: Any = None, app: Celery | None = None, parent: Any = None
    ) -> None:
        from hookstation_client.celery.canvas import current_app  # noqa: PLC0415 - the default

        self.id = id
        self.app = app or current_app()
        self.parent = parent
        self._found: dict[str, Any] | None = None

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self.id

    @property
    def first(self) -> Any:
        """The result of the first task in the chain."""
        return self if self.parent is None else self.parent.first

    @property
    def state(self) -> str:
        """PENDING until the task has ended, then SUCCESS or FAILURE."""
        found = self._look()
        return str(found["status"]) if found else PENDING

    status = state

    @property
    def result(self) -> Any:
        """The return value or the error of the task; None until it has ended."""
        found = self._look()
        if not found:
            return None
        return _decoded(found["result"]) if found["status"] != SUCCESS else found["result"]

    info = result

    @property
    def traceback(self) -> str | None:
        """The traceback of a task that failed."""
        return (self._look() or {}).get("traceback")

    @property
    def date_done(self) -> datetime | None:
        """The time at which the task ended."""
        found = self._look()
        return datetime.fromisoformat(found["date_done"]) if found else None

    def ready(self) -> bool:
        """Return whether the task has ended."""
        return self._look() is not None

    def successful(self) -> bool:
        """Return whether the task succeeded."""
        return self.state == SUCCESS

    def failed(self) -> bool:
        """Return whether the task failed."""
        return self.state == FAILURE

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = LONGEST_LOOK_S,
        disable_sync_subtasks: bool = True,
        **options: Any,
    ) -> Any:
        """Wait for the result for up to ``timeout`` seconds; raise the task's error if it failed.

        Raises `TimeoutError`. Raises RuntimeError inside a task, where it would block the worker.
        """
        if options:
            raise NotCovered(f"AsyncResult.get({', '.join(sorted(options))})")
        if disable_sync_subtasks:
            _assert_not_in_task()
        end = None if timeout is None else time.monotonic() + timeout
        if propagate and self.parent is not None:
            for node in self._parents():
                node.maybe_throw()
        pause = FIRST_LOOK_S
        while self._look() is None:
            if end is not None and time.monotonic() >= end:
                raise TimeoutError("The operation timed out.")
            time.sleep(pause if end is None else min(pause, max(0.0, end - time.monotonic())))
            pause = min(pause * 1.5, max(interval, FIRST_LOOK_S))
        if propagate:
            self.maybe_throw()
        return self.result

    wait = get

    def maybe_throw(self, propagate: bool = True) -> Any:
        """Raise the task's error if it failed."""
        if propagate and self.state in {FAILURE, REVOKED}:
            raise self.result
        return self.result

    maybe_reraise = maybe_throw

    def forget(self) -> None:
        """Make the result unavailable. The channel's retention deletes it later."""
        self._found = None
        self.app.results.forget(self.id)

    def _parents(self) -> list[Any]:
        found: list[Any] = []
        node = self.parent
        while node is not None:
            found.insert(0, node)
            node = node.parent
        return found

    def _look(self) -> dict[str, Any] | None:
        if self._found is None:
            self.app.require_backend("a result")
            self._found = self.app.results.read(self.id)
        return self._found

    def __getattr__(self, name: str) -> Any:
        refuse_unknown(name, "AsyncResult")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncResult) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.id}>"


class EagerResult(AsyncResult):
    """The result of a task that ran eagerly, in this process."""

    def __init__(
        self, id: str, value: Any, state: str, traceback: str | None = None, app: Any = None
    ) -> None:
        super().__init__(id, app=app)
        self._value, self._state, self._trace = value, state, traceback

    @property
    def state(self) -> str:
        return self._state

    status = state

    @property
    def result(self) -> Any:
        return self._value

    info = result

    @property
    def traceback(self) -> str | None:
        return self._trace

    def ready(self) -> bool:
        return True

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = 0.0,
        disable_sync_subtasks: bool = True,
        **options: Any,
    ) -> Any:
        return self.maybe_throw(propagate)

    wait = get

    def forget(self) -> None:
        """Do nothing: the result is not stored."""


class GroupResult:
    """The results of a group's tasks."""

    def __init__(
        self, id: str, results: list[Any], app: Celery | None = None, parent: Any = None
    ) -> None:
        self.id, self.results, self.parent = id, results, parent

    @property
    def first(self) -> Any:
        """The result of the first task in the chain."""
        return self if self.parent is None else self.parent.first

    @property
    def children(self) -> list[Any]:
        """The results of the tasks."""
        return self.results

    def ready(self) -> bool:
        """Return whether all tasks have ended."""
        return all(result.ready() for result in self.results)

    def successful(self) -> bool:
        """Return whether all tasks succeeded."""
        return all(result.successful() for result in self.results)

    def failed(self) -> bool:
        """Return whether any task failed."""
        return any(result.failed() for result in self.results)

    def waiting(self) -> bool:
        """Return whether any task has not ended."""
        return not self.ready()

    def completed_count(self) -> int:
        """Return the number of tasks that succeeded."""
        return sum(result.successful() for result in self.results)

    def get(
        self, timeout: float | None = None, propagate: bool = True, **options: Any
    ) -> list[Any]:
        """Wait for all results, ``timeout`` seconds in total; raise the first error."""
        end = None if timeout is None else time.monotonic() + timeout
        found = []
        for result in self.results:
            left = None if end is None else max(0.0, end - time.monotonic())
            found.append(result.get(timeout=left, propagate=propagate, **options))
        return found

    join = get

    def maybe_throw(self, propagate: bool = True) -> None:
        """Raise the task's error if it failed."""
        for result in self.results:
            result.maybe_throw(propagate)

    def forget(self) -> None:
        """Make all results unavailable."""
        for result in self.results:
            result.forget()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> Any:
        return self.results[index]

    def __getattr__(self, name: str) -> Any:
        refuse_unknown(name, "GroupResult")

    def __repr__(self) -> str:
        return f"<GroupResult: {self.id} [{', '.join(map(str, self.results))}]>"


ResultSet = GroupResult

_NOT_COVERED = frozenset(
    {
        *("revoke", "children", "collect", "graph", "iterdeps", "get_leaf", "build_graph", "then"),
        *("as_tuple", "as_list", "args", "kwargs", "name", "queue", "retries", "worker", "save"),
        *(
            "restore",
            "delete",
            "iterate",
            "iter_native",
            "join_native",
            "revoke_by_stamped_headers",
        ),
        *("ignored", "on_ready", "add", "remove", "update", "discard", "clear"),
    }
)


def refuse_unknown(name: str, kind: str) -> Any:
    """Raise NotCovered for an attribute that only Celery has, else AttributeError."""
    if name in _NOT_COVERED:
        raise NotCovered(f"{kind}.{name}")
    raise AttributeError(name)


def _assert_not_in_task() -> None:
    from hookstation_client.celery.task import current_task  # noqa: PLC0415 - it needs results

    if current_task() is not None:
        raise RuntimeError("Never call result.get() within a task!")


def _forgotten(task_id: str) -> str:
    return f"{task_id}:forgotten"


def _encoded(error: BaseException) -> dict[str, Any]:
    """Encode an error for JSON: its arguments if JSON can encode them, else its text."""
    kind = type(error)
    try:
        encode(error.args)
        args = list(error.args)
    except (TypeError, ValueError):
        args = [str(error)]
    return {"exc_module": kind.__module__, "exc_type": kind.__qualname__, "exc_message": args}


def _decoded(encoded: Any) -> BaseException:
    """Decode an error: of its class if that is loaded, else of a new class of that name."""
    args = encoded["exc_message"]
    kind = _class_of(encoded["exc_module"], encoded["exc_type"])
    try:
        return kind(*args)
    except Exception:  # the class needs other arguments
        return Exception(f"{encoded['exc_type']}{tuple(args)!r}")


def _class_of(module: str, name: str) -> Callable[..., BaseException]:
    """Find a class in loaded modules only: a result must not decide what is imported."""
    try:
        found: Any = sys.modules[module]
        for part in name.split("."):
            found = getattr(found, part)
    except (KeyError, AttributeError):
        found = None
    if isinstance(found, type) and issubclass(found, BaseException):
        return found
    return type(name, (Exception,), {"__module__": module})
