"""Tasks: defining, calling and retrying them."""

from __future__ import annotations

import inspect
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Callable, NoReturn

from hookstation_client.celery import canvas
from hookstation_client.celery.exceptions import (
    Ignore,
    MaxRetriesExceededError,
    NotCovered,
    OperationalError,
    Reject,
    Retry,
)

if TYPE_CHECKING:
    from hookstation_client.celery.app import Celery
    from hookstation_client.celery.protocol import TaskMessage
    from hookstation_client.celery.result import AsyncResult, EagerResult

OPTIONS = frozenset(
    {
        *("max_retries", "default_retry_delay", "autoretry_for", "dont_autoretry_for"),
        *("retry_kwargs", "retry_backoff", "retry_backoff_max", "retry_jitter", "rate_limit"),
        *("acks_late", "ignore_result", "throws", "priority", "queue", "expires", "typing"),
        *("store_errors_even_if_ignored", "reject_on_worker_lost", "serializer"),
        *("track_started", "abstract"),
    }
)
"""Supported options of a task; any other raises NotCovered."""
FIXED = {"serializer": (None, "json"), "track_started": (None, False)}
FIXED["reject_on_worker_lost"] = (None, True)
"""Options with only one supported value besides None."""


class Context:
    """``self.request``: the current call of a task."""

    id: str | None = None
    task: str | None = None
    args: Any = None
    kwargs: Any = None
    retries = 0
    eta: str | None = None
    expires: str | None = None
    ignore_result: bool | None = None
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    group_index: int | None = None
    headers: dict[str, Any] | None = None
    callbacks: Any = None
    errbacks: Any = None
    chain: Any = None
    chord: Any = None
    hostname: str | None = None
    delivery_info: dict[str, Any] | None = None
    called_directly = True
    is_eager = False
    is_entered = False

    def __init__(self, **fields: Any) -> None:
        # Custom headers of the sender are attributes, too.
        vars(self).update(fields.get("headers") or {})
        vars(self).update(fields)

    @classmethod
    def of(cls, message: TaskMessage, **fields: Any) -> Context:
        """Create the request from a message."""
        return cls(**vars(message), called_directly=False, **fields)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or the default."""
        return getattr(self, name, default)

    @property
    def correlation_id(self) -> str | None:
        """The same as ``id``, as in Celery."""
        return self.id


class _Running(threading.local):
    """The tasks that run in this thread, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[tuple[Task, Context]] = []


_running = _Running()
_DIRECT = Context()


def current_request() -> Context | None:
    """Return the request of the task that runs in this thread."""
    return _running.stack[-1][1] if _running.stack else None


def current_task() -> Task | None:
    """Return the task that runs in this thread."""
    return _running.stack[-1][0] if _running.stack else None


class Task:
    """A task. Subclasses may override ``run`` and the ``on_...`` methods, as in Celery."""

    name: str = ""
    max_retries: int | None = 3
    default_retry_delay: float = 180
    autoretry_for: tuple[type[BaseException], ...] = ()
    dont_autoretry_for: tuple[type[BaseException], ...] = ()
    retry_kwargs: dict[str, Any] = {}
    retry_backoff: bool | float = False
    retry_backoff_max = 600
    retry_jitter = True
    rate_limit: str | float | None = None
    acks_late: bool | None = None
    ignore_result: bool | None = None
    store_errors_even_if_ignored: bool | None = None
    throws: tuple[type[BaseException], ...] = ()
    priority: int | None = None
    queue: str | None = None
    expires: float | datetime | None = None
    typing = True
    serializer = "json"
    track_started = False
    reject_on_worker_lost: bool | None = None
    abstract = True
    MaxRetriesExceededError = MaxRetriesExceededError
    OperationalError = OperationalError
    _app: Celery | None = None

    @property
    def app(self) -> Celery:
        """The application; for a shared task, the current one."""
        return self._app or canvas.current_app()

    @property
    def request(self) -> Context:
        """The current call of this task in this thread, or a default one if there is none."""
        for task, request in reversed(_running.stack):
            if task is self:
                return request
        return _DIRECT

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The task's function."""
        raise NotImplementedError("Tasks must define the run method.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task as a function; in a worker, with the received request."""
        request = self.request
        if not request.called_directly and not request.is_entered:
            request.is_entered = True
            return self._attempt(*args, **kwargs)
        with self.running(Context(args=args, kwargs=kwargs)):
            return self._attempt(*args, **kwargs)

    @contextmanager
    def running(self, request: Context) -> Iterator[None]:
        """Context in which this is the current task of the thread."""
        _running.stack.append((self, request))
        try:
            yield
        finally:
            _running.stack.pop()

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult | EagerResult:
        """Send a call with these arguments."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Any = None, kwargs: Any = None, **options: Any
    ) -> AsyncResult | EagerResult:
        """Send a call. The options are those of `Celery.send_task`."""
        args, kwargs = tuple(args or ()), dict(kwargs or {})
        if self.typing:
            inspect.signature(self.run).bind(*args, **kwargs)
        if self.app.conf.task_always_eager:
            return self.apply(args, kwargs, **options)
        sent: AsyncResult = self.app.send_task(
            self.name, args, kwargs, **self.with_defaults(options)
        )
        return sent

    def with_defaults(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a call, with the task's options as defaults."""
        said = {name: getattr(self, name) for name in ("priority", "queue", "expires")}
        said["ignore_result"] = self.ignore_result
        return {**{name: value for name, value in said.items() if value is not None}, **options}

    def apply(
        self, args: Any = None, kwargs: Any = None, throw: bool | None = None, **options: Any
    ) -> EagerResult:
        """Run the task in this process and wait for it, including retries and links."""
        from hookstation_client.celery.tracing import apply_eagerly  # noqa: PLC0415 - needs tasks

        return apply_eagerly(self, args or (), kwargs or {}, throw, options)

    # -- Signatures ------------------------------------------------------------------------------

    def signature(self, args: Any = None, *more: Any, **options: Any) -> canvas.Signature:
        """Return a call as a value, see `canvas.Signature`."""
        made: canvas.Signature = canvas.signature(self, args, *more, app=self._app, **options)
        return made

    subtask = signature

    def s(self, *args: Any, **kwargs: Any) -> canvas.Signature:
        """Return a signature with these arguments."""
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> canvas.Signature:
        """Like `s`, but immutable: it ignores the results of previous tasks."""
        return self.signature(args, kwargs, immutable=True)

    # -- Retries ---------------------------------------------------------------------------------

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Retry:
        """Send the task again as its next retry, and raise `Retry`.

        The retry is a new message whose idempotency key derives from the task and the retry number.
        If the worker is killed before it acknowledges the current message, the task runs again,
        and the broker stores its retry only once. Raises ``exc`` or `MaxRetriesExceededError` if no
        retries are left.
        """
        request = self.request
        if request.called_directly:
            _raise(exc or Retry("the task was called directly"))
        most = self.max_retries if max_retries is None else max_retries
        args = request.args if args is None else args
        kwargs = request.kwargs if kwargs is None else kwargs
        if most is not None and request.retries >= most:
            if exc is not None:
                _raise(exc)
            raise MaxRetriesExceededError(
                f"Can't retry {self.name}[{request.id}] args:{args} kwargs:{kwargs}",
                task_args=args,
                task_kwargs=kwargs,
            )
        if eta is None and countdown is None:
            countdown = self.default_retry_delay
        again = self.signature(args, kwargs, {**self._options_of(request), **options})
        retry = Retry(exc=exc, when=eta or countdown, is_eager=request.is_eager, sig=again)
        if not request.is_eager:
            try:
                self.app.send_again(again, eta=eta, countdown=countdown)
            except OperationalError as error:
                # Requeue: the broker delivers the message again, and the task runs again.
                raise Reject(error, requeue=True) from error
        if throw:
            raise retry
        return retry

    def _options_of(self, request: Context) -> dict[str, Any]:
        """Return the options with which the same call is sent again."""
        info = request.delivery_info or {}
        return {
            "task_id": request.id,
            "retries": request.retries + 1,
            "root_id": request.root_id,
            "parent_id": request.parent_id,
            "group_id": request.group,
            "group_index": request.group_index,
            "headers": request.headers,
            "expires": datetime.fromisoformat(request.expires) if request.expires else None,
            "ignore_result": request.ignore_result,
            "link": request.callbacks,
            "link_error": request.errbacks,
            "chain": request.chain,
            "chord": request.chord,
            "queue": info.get("routing_key"),
            "priority": info.get("priority"),
        }

    def _attempt(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task, and retry it for errors in ``autoretry_for``."""
        if not self.autoretry_for:
            return self.run(*args, **kwargs)
        try:
            return self.run(*args, **kwargs)
        except (Ignore, Retry):
            raise
        except tuple(self.dont_autoretry_for):
            raise
        except tuple(self.autoretry_for) as error:
            said = dict(self.retry_kwargs)
            if self.retry_backoff:
                said["countdown"] = self._backoff()
            raise self.retry(exc=error, **said) from error

    def _backoff(self) -> float:
        factor = int(max(1.0, float(self.retry_backoff)))
        countdown: int = min(self.retry_backoff_max, factor * 2**self.request.retries)
        if not self.retry_jitter:
            return countdown
        return random.randrange(countdown + 1)  # noqa: S311 - spreads load, keeps no secret

    # -- Hooks -----------------------------------------------------------------------------------

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Called by the worker before the task runs."""

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """Called by the worker after the task succeeds."""

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called by the worker after the task fails; ``einfo`` is the text of the traceback."""

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called by the worker when the task is to be retried."""

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Called by the worker after the task succeeds or fails."""

    def __getattr__(self, name: str) -> Any:
        if name in {
            "replace",
            "add_to_chord",
            "update_state",
            "map",
            "starmap",
            "chunks",
            "send_event",
        }:
            raise NotCovered(f"Task.{name}")
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"<@task: {self.name}>"


def task_class(fun: Callable[..., Any], base: type[Task], bind: bool, options: Any) -> type[Task]:
    """Return the task class for a function. Raises NotCovered."""
    check_options(options)
    body = {
        "run": fun if bind else staticmethod(fun),
        "__doc__": fun.__doc__,
        "__module__": fun.__module__,
        "__wrapped__": fun,
        "__header__": staticmethod(fun),
        "abstract": False,
        **options,
    }
    return type(fun.__name__, (base,), body)


def check_options(options: dict[str, Any]) -> None:
    """Raise NotCovered for an unsupported option of a task."""
    for name, value in options.items():
        if name not in OPTIONS:
            raise NotCovered(f"the option {name} of a task")
        if value not in FIXED.get(name, (value,)):
            raise NotCovered(f"the option {name}={value!r} of a task")


def _raise(error: BaseException) -> NoReturn:
    """Raise an error; if it is the one being handled, keep its traceback."""
    handled = sys.exc_info()[1]
    if handled is error:
        raise error
    if handled is not None and error is not handled:
        raise error from handled
    raise error
