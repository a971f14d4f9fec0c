"""The application: registers tasks, holds settings, sends calls."""

from __future__ import annotations

import fnmatch
import importlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, NamedTuple, overload
from zoneinfo import ZoneInfo

from hookstation_client import Hookstation, Outgoing
from hookstation_client.celery import canvas
from hookstation_client.celery.exceptions import (
    ImproperlyConfigured,
    NotCovered,
    NotRegistered,
    OperationalError,
    Reject,
)
from hookstation_client.celery.protocol import TaskMessage, new_id
from hookstation_client.celery.result import AsyncResult, GroupResult, Results
from hookstation_client.celery.schedules import maybe_schedule
from hookstation_client.celery.settings import Settings
from hookstation_client.celery.task import Task, check_options, current_request, task_class
from hookstation_client.errors import (
    Conflict,
    ConnectionFailed,
    HookstationError,
    NotFound,
    RateLimited,
    Unavailable,
)
from hookstation_client.errors import Retry as Later
from hookstation_client.receiving import Event, Hooks

CONSUMER = "workers"
"""Client id of the pull consumer of each queue."""
PUSH_CONSUMER = "web"
"""Client id of the push consumer of a queue, if it has one."""
BACK_IN_S = 30
"""Seconds until the retry of a message whose task this process does not know."""
MAX_ATTEMPTS = 100
"""Attempts until a message is dead whose task no worker knows."""
BATCH_MESSAGES = 200
BATCH_BYTES = 8 * 1024 * 1024
BEAT = "beat."
"""Prefix of the names of schedules that come from ``beat_schedule``."""
OPTIONS = frozenset(
    {
        *("countdown", "eta", "expires", "priority", "queue", "task_id", "link", "link_error"),
        *("headers", "ignore_result", "retries", "root_id", "parent_id", "group_id"),
        *("group_index", "chain", "chord", "serializer", "retry"),
    }
)
"""Supported options of a call; any other raises NotCovered."""

_shared: list[Callable[[Celery], None]] = []
_EVENT_TYPE = re.compile(r"\w+(\.\w+)*", re.ASCII)


class _Call(NamedTuple):
    """A message to send."""

    queue: str
    outgoing: Outgoing
    is_repeated: bool
    """Whether an earlier run of the same task may have sent it with other content."""


class _Sending(threading.local):
    """The messages that the current thread is about to send."""

    def __init__(self) -> None:
        self.batch: list[_Call] | None = None
        self.is_repeated = False


class Signal:
    """Calls its receivers with ``sender=app`` when the application is ready."""

    def __init__(self) -> None:
        self._receivers: list[Callable[..., Any]] = []

    def connect(self, receiver: Any = None, **options: Any) -> Any:
        """Add a receiver; can be used as a decorator."""
        if receiver is None:
            return self.connect
        self._receivers.append(receiver)
        return receiver

    def send(self, sender: Any) -> None:
        """Call each receiver once."""
        receivers, self._receivers = self._receivers, []
        for receiver in receivers:
            receiver(sender=sender)


class Celery:
    """A Celery application whose broker is Hookstation.

    If ``HOOKSTATION_URL`` and ``HOOKSTATION_KEY`` are set, ``broker`` may keep its previous value.
    If ``backend`` has any value, results are stored, always in Hookstation.
    """

    def __init__(
        self,
        main: str | None = None,
        *,
        broker: str | None = None,
        backend: str | None = None,
        include: Any = None,
        config_source: Any = None,
        namespace: str | None = None,
        set_as_current: bool = True,
        task_cls: type[Task] | None = None,
        **more: Any,
    ) -> None:
        if more:
            raise NotCovered(f"Celery({', '.join(sorted(more))})")
        self.main = main
        self.conf = Settings()
        self.conf.update(broker_url=broker, include=include or ())
        self.conf.result_backend = os.environ.get("CELERY_RESULT_BACKEND") or backend
        self.Task = task_cls or Task
        self.tasks: dict[str, Task] = {}
        self.results = Results(self)
        self.on_after_configure = Signal()
        self.on_after_finalize = Signal()
        self._client: Hookstation | None = None
        self._declared: set[str] = set()
        self._sending = _Sending()
        self._lock = threading.RLock()
        if config_source is not None:
            self.config_from_object(config_source, namespace=namespace)
        for adopt in _shared:
            adopt(self)
        _applications.append(self)
        if set_as_current:
            self.set_current()

    # -- Settings --------------------------------------------------------------------------------

    def config_from_object(
        self, obj: Any, silent: bool = False, force: bool = False, namespace: str | None = None
    ) -> None:
        """Read settings of a module or object; ``namespace="CELERY"`` reads Django's."""
        self.conf.read(obj, namespace)

    def set_current(self) -> None:
        """Make this the current application, which sends shared tasks."""
        if self in canvas._apps:
            canvas._apps.remove(self)
        canvas._apps.append(self)

    set_default = set_current

    @property
    def client(self) -> Hookstation:
        """The Hookstation client that sends all messages."""
        with self._lock:
            if self._client is None:
                url, key = self.conf.address
                self._client = Hookstation(url, key=key)
            return self._client

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def require_backend(self, what: str) -> None:
        """Raise ImproperlyConfigured if no result backend is set."""
        if not self.conf.result_backend:
            raise ImproperlyConfigured(
                f"No result backend is configured, and {what} needs one: Celery(backend=...)."
            )

    # -- Tasks -----------------------------------------------------------------------------------

    @overload
    def task(self, fun: Callable[..., Any], /) -> Task: ...

    @overload
    def task(self, **options: Any) -> Callable[[Callable[..., Any]], Task]: ...

    def task(self, *args: Any, **options: Any) -> Any:
        """Make a function a task. A decorator, with or without options."""
        if len(args) == 1 and callable(args[0]) and not options:
            return self._task(args[0])
        if args:
            raise TypeError("@app.task() accepts only keyword arguments.")
        return lambda fun: self._task(fun, **options)

    def _task(
        self,
        fun: Callable[..., Any],
        name: str | None = None,
        base: type[Task] | None = None,
        bind: bool = False,
        shared: bool = True,
        **options: Any,
    ) -> Task:
        name = name or self.gen_task_name(fun.__name__, fun.__module__)
        if name not in self.tasks:
            task = task_class(fun, base or self.Task, bind, options)()
            task.name = name
            self.register_task(task)
        return self.tasks[name]

    def register_task(self, task: Any, **options: Any) -> Task:
        """Register a task class or an instance of one."""
        check_options(options)
        task = task() if isinstance(task, type) else task
        vars(task).update(options)
        kind = type(task)
        task.name = task.name or self.gen_task_name(kind.__name__, kind.__module__)
        task._app = self
        self.tasks[task.name] = task
        found: Task = task
        return found

    def gen_task_name(self, name: str, module: str) -> str:
        """Return the default name of a task: module and function name."""
        return f"{self.main if module == '__main__' and self.main else module}.{name}"

    def autodiscover_tasks(
        self, packages: Any = None, related_name: str | None = "tasks", force: bool = False
    ) -> None:
        """Import ``tasks`` of each package, by default of Django's apps, when a worker starts."""
        self.on_after_finalize.connect(lambda sender: _import_related(packages, related_name))

    def finalize(self) -> None:
        """Import the modules in ``imports`` and ``include``, and send the signals."""
        for module in (*self.conf.imports, *self.conf.include):
            importlib.import_module(module)
        self.on_after_finalize.send(self)
        self.on_after_configure.send(self)

    def add_periodic_task(
        self, schedule: Any, sig: Any, args: Any = (), kwargs: Any = None, **options: Any
    ) -> str:
        """Add a signature to ``beat_schedule`` and return the name of its entry."""
        name = str(options.pop("name", None) or repr(sig))
        call = sig.clone(args, kwargs)
        self.conf.beat_schedule = {
            **self.conf.beat_schedule,
            name: {
                "task": call.task,
                "schedule": schedule,
                "args": call.args,
                "kwargs": call.kwargs,
                "options": {**call.options, **options},
            },
        }
        return name

    # -- Sending ---------------------------------------------------------------------------------

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Send a call of a task by its name. When it returns, the broker has stored the call.

        Options are ``countdown`` (seconds) or ``eta``, ``expires`` (seconds or a datetime),
        ``priority``, ``queue``, ``task_id``, ``link``, ``link_error``, ``headers`` and
        ``ignore_result``. Raises NotCovered for other options, `OperationalError` if the broker
        is unavailable, and the client's other errors if it refuses the call.
        """
        if self.conf.task_always_eager and name in self.tasks:
            return self.tasks[name].apply(args, kwargs, **options)
        options = {key: value for key, value in options.items() if value is not None}
        _check_call(options)
        task_id = str(options.pop("task_id", None) or new_id())
        queue = self._queue_of(name, args, kwargs, options)
        message, outgoing = self._message(name, task_id, args, kwargs, options)
        self._send(_Call(queue, outgoing, self._sending.is_repeated))
        return self.AsyncResult(message.id or task_id)

    def send_again(self, call: Any, **options: Any) -> None:
        """Send a retry, only once even if the task that sends it runs twice."""
        with self.repeated():
            options = {**call.options, **options}
            self.send_task(call.task, call.args, call.kwargs, **options)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Context in which a message that an earlier run of the task sent counts as sent."""
        before, self._sending.is_repeated = self._sending.is_repeated, True
        try:
            yield
        finally:
            self._sending.is_repeated = before

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Context that sends its messages at its end, those of each queue in one transaction."""
        if self._sending.batch is not None:
            yield
            return
        self._sending.batch = []
        try:
            yield
            collected, self._sending.batch = self._sending.batch, None
        finally:
            self._sending.batch = None
        self._send_all(collected)

    def AsyncResult(self, task_id: str, **options: Any) -> AsyncResult:
        """Return the result of a task."""
        return AsyncResult(task_id, app=self, **options)

    def GroupResult(self, group_id: str, results: Any) -> GroupResult:
        """Return the results of a group."""
        return GroupResult(group_id, list(results), app=self)

    def signature(self, *args: Any, **options: Any) -> Any:
        """Return a signature that this application sends."""
        return canvas.signature(*args, app=self, **options)

    def declare(self, queue: str) -> None:
        """Create the queue's channel and pull consumer, unless they exist.

        An existing channel keeps its settings. If it has consumers, none is added.
        """
        if queue in self._declared:
            return
        try:
            listed = list(self.client.consumers(queue))
        except NotFound:
            self.client.create_channel(queue, kind="queue", description="A queue of tasks")
            listed = []
        if not listed:
            self.client.register(queue, CONSUMER, max_attempts=MAX_ATTEMPTS)
        self._declared.add(queue)

    def put_beat_schedule(self) -> None:
        """Write ``beat_schedule`` to the broker's schedules, and delete removed entries."""
        wanted: dict[str, set[str]] = {self.conf.task_default_queue: set()}
        for name, entry in self.conf.beat_schedule.items():
            queue, slug, fields = self._schedule(name, entry)
            self.declare(queue)
            self.client.schedules(queue).put(slug, **fields)
            wanted.setdefault(queue, set()).add(slug)
        for queue in {*wanted, *self._queues_of_routes()}:
            self._forget_schedules(queue, wanted.get(queue, set()))

    def run_message(self, content: bytes, message_id: str, **place: Any) -> None:
        """Run a received task, see `tracing.run`. Raises ValueError if the body has no task."""
        from hookstation_client.celery.tracing import run  # noqa: PLC0415 - it needs the app

        message = TaskMessage.decode(content)
        message.id = message.id or message_id
        message.root_id = message.root_id or message.id
        run(self, message, **place)

    def task_of(self, content: bytes) -> Task | None:
        """Return the task that a message calls, or None if this application does not have it."""
        try:
            return self.tasks.get(TaskMessage.decode(content).task)
        except ValueError:
            return None

    def acks_early(self, content: bytes) -> bool:
        """Return whether a received task is to be acknowledged before it runs."""
        task = self.task_of(content)
        late = task.acks_late if task and task.acks_late is not None else self.conf.task_acks_late
        return late is False

    def __getattr__(self, name: str) -> Any:
        if name in {"control", "events", "amqp", "pool", "backend", "connection", "loader"}:
            raise NotCovered(f"app.{name}")
        if name in {"add_defaults", "setup_security", "user_options", "steps", "worker_main"}:
            raise NotCovered(f"app.{name}")
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"<Celery {self.main or '__main__'}>"

    # -- Push ------------------------------------------------------------------------------------

    def fastapi_router(self, path: str = "/tasks") -> Any:
        """Return a FastAPI router that runs pushed tasks."""
        return self.hooks().fastapi_router(path)

    def flask_blueprint(self, path: str = "/tasks") -> Any:
        """Return a Flask blueprint that runs pushed tasks."""
        return self.hooks().flask_blueprint(path, name="hookstation_tasks")

    def django_urls(self, path: str = "tasks") -> list[Any]:
        """Return Django URL patterns that run pushed tasks."""
        return self.hooks().django_urls(path, name="hookstation_tasks")

    def hooks(self) -> Hooks:
        """Return `Hooks` for pushed tasks, signed with ``webhook_secrets``.

        The default secret is ``HOOKSTATION_SECRET``. A task runs within the request, and the
        response acknowledges it, so it must end within the consumer's ``timeout_ms``.
        """
        hooks = Hooks(self.conf.webhook_secrets or None)

        @hooks.on("*")
        def run(event: Event) -> None:
            delivery_info = {
                "routing_key": event.channel,
                "exchange": "",
                "priority": self.conf.priority_of_broker(event.priority),
                "redelivered": event.attempt > 1,
            }
            try:
                self.run_message(
                    event.body, event.id, hostname=event.consumer, delivery_info=delivery_info
                )
            except Reject as rejected:
                if rejected.requeue:
                    raise Later(after=1) from rejected
            except (NotRegistered, ValueError) as error:
                raise Later(after=BACK_IN_S) from error

        return hooks

    def register_push(self, url: str, queue: str | None = None, **fields: Any) -> dict[str, Any]:
        """Make the broker push a queue's tasks to ``url``. Idempotent.

        One of the routes above must receive them. ``fields`` are those of a consumer (docs/api.md,
        "Consumers"). Only the result that creates the consumer contains the signing secret, as
        ``secret``.
        """
        queue = queue or self.conf.task_default_queue
        said = {"max_attempts": MAX_ATTEMPTS, "timeout_ms": 300_000, **fields}
        try:
            self.client.channel(queue)
        except NotFound:
            self.client.create_channel(queue, kind="queue", description="A queue of tasks")
        return self.client.register(queue, PUSH_CONSUMER, url=url, **said)

    # -- Internal --------------------------------------------------------------------------------

    def _message(
        self, name: str, task_id: str | None, args: Any, kwargs: Any, options: dict[str, Any]
    ) -> tuple[TaskMessage, Outgoing]:
        parent = current_request()
        eta, expires = self._instant(options.get("eta")), self._expiry(options.get("expires"))
        countdown = options.get("countdown")
        if countdown is not None:
            eta = datetime.now(timezone.utc) + timedelta(seconds=countdown)
        retries = int(options.get("retries", 0))
        message = TaskMessage(
            task=name,
            id=task_id,
            args=list(args or ()),
            kwargs=dict(kwargs or {}),
            retries=retries,
            eta=eta.isoformat() if eta else None,
            expires=expires.isoformat() if expires else None,
            ignore_result=options.get("ignore_result"),
            root_id=options.get("root_id") or (parent.root_id if parent else task_id),
            parent_id=options.get("parent_id") or (parent.id if parent else None),
            group=options.get("group_id"),
            group_index=options.get("group_index"),
            headers=dict(options.get("headers") or {}),
            callbacks=canvas.as_list(options.get("link")),
            errbacks=canvas.as_list(options.get("link_error")),
            chain=canvas.as_list(options.get("chain")),
            chord=options.get("chord"),
        )
        outgoing = Outgoing(
            message.encode(),
            id=f"{task_id}:{retries}",
            event_type=_event_type(name),
            priority=self.conf.priority(options.get("priority")),
            deliver_in=max(0.0, countdown) if countdown is not None else None,
            deliver_at=eta if countdown is None else None,
            expires_at=expires,
            content_type="application/json",
        )
        return message, outgoing

    def _send(self, call: _Call) -> None:
        if self._sending.batch is not None:
            self._sending.batch.append(call)
            return
        try:
            self.declare(call.queue)
            fields = {name: getattr(call.outgoing, name) for name in _FIELDS}
            self.client.publish(call.queue, call.outgoing.body, **fields)
        except HookstationError as error:
            _raise_unless_repeated(error, call)

    def _send_all(self, calls: list[_Call]) -> None:
        if len(calls) == 1:
            return self._send(calls[0])
        queues: dict[str, list[_Call]] = {}
        for call in calls:
            queues.setdefault(call.queue, []).append(call)
        for queue, of_queue in queues.items():
            for part in _parts(of_queue):
                self._send_part(queue, part)

    def _send_part(self, queue: str, calls: list[_Call]) -> None:
        try:
            self.declare(queue)
            results = self.client.publish_batch(queue, [call.outgoing for call in calls])
        except HookstationError as error:
            return _raise_unless_repeated(error)
        for call, result in zip(calls, results):
            if result.error is not None:
                _raise_unless_repeated(result.error, call)

    def _queue_of(self, name: str, args: Any, kwargs: Any, options: dict[str, Any]) -> str:
        if "queue" in options:
            return str(options["queue"])
        route = self._route(name, args, kwargs, options)
        if isinstance(route, str):
            return route
        route = dict(route or {})
        queue = str(route.pop("queue", None) or self.conf.task_default_queue)
        _check_call(route)
        for key, value in route.items():
            options.setdefault(key, value)
        return queue

    def _route(self, name: str, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        routes = self.conf.task_routes or ()
        for router in routes if isinstance(routes, (list, tuple)) else (routes,):
            if callable(router):
                found = router(name, args, kwargs, options, task=self.tasks.get(name))
            else:
                found = _matching(router, name)
            if found:
                return found
        return None

    def _queues_of_routes(self) -> set[str]:
        routes = self.conf.task_routes
        listed = list(routes.values()) if isinstance(routes, dict) else []
        return {route["queue"] for route in listed if isinstance(route, dict) and "queue" in route}

    def _schedule(self, name: str, entry: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
        """Return queue, name and fields of the broker's schedule for a ``beat_schedule`` entry."""
        known = {"task", "schedule", "args", "kwargs", "options"}
        options = dict(entry.get("options") or {})
        refused = [*(set(entry) - known), *(set(options) - {"queue", "priority"})]
        if entry.get("relative") or refused:
            raise NotCovered(f"beat_schedule[{name!r}] with {', '.join(sorted(refused))}")
        args, kwargs = entry.get("args"), entry.get("kwargs")
        task = self.tasks.get(entry["task"])
        options = task.with_defaults(options) if task else options
        queue = self._queue_of(entry["task"], args, kwargs, options)
        message, outgoing = self._message(entry["task"], None, args, kwargs, options)
        message.root_id = message.parent_id = None
        rhythm = maybe_schedule(entry["schedule"]).as_fields(self.conf.timezone or "UTC")
        fields = {
            **rhythm,
            "body": message.encode(),
            "content_type": "application/json",
            "event_type": outgoing.event_type,
            "priority": outgoing.priority,
            "description": f"beat_schedule: {name}"[:2000],
        }
        slug = BEAT + re.sub(r"[^a-z0-9._-]+", "-", name.lower())[:90]
        return queue, slug, {key: value for key, value in fields.items() if value is not None}

    def _forget_schedules(self, queue: str, wanted: set[str]) -> None:
        schedules = self.client.schedules(queue)
        try:
            there = [str(one["name"]) for one in schedules.list()]
        except NotFound:
            return
        for name in there:
            if name.startswith(BEAT) and name not in wanted:
                schedules.delete(name)

    def _instant(self, value: datetime | None) -> datetime | None:
        if value is None or value.tzinfo is not None:
            return value
        return value.replace(tzinfo=ZoneInfo(self.conf.timezone or "UTC"))

    def _expiry(self, value: Any) -> datetime | None:
        if isinstance(value, (int, float)):
            return datetime.now(timezone.utc) + timedelta(seconds=value)
        return self._instant(value)


_applications: list[Celery] = []
_FIELDS = ("id", "event_type", "priority", "deliver_in", "deliver_at", "expires_at", "content_type")


@overload
def shared_task(fun: Callable[..., Any], /) -> Task: ...


@overload
def shared_task(**options: Any) -> Callable[[Callable[..., Any]], Task]: ...


def shared_task(*args: Any, **options: Any) -> Any:
    """Make a function a task of every application; the current one sends it."""
    if len(args) == 1 and callable(args[0]) and not options:
        return _share(args[0], {})
    return lambda fun: _share(fun, options)


def _share(fun: Callable[..., Any], options: dict[str, Any]) -> Task:
    options = dict(options)
    base, bind = options.pop("base", None) or Task, options.pop("bind", False)
    options.pop("shared", None)
    name = options.pop("name", None) or f"{fun.__module__}.{fun.__name__}"
    task = task_class(fun, base, bind, options)()
    task.name = name

    def adopt(app: Celery) -> None:
        app.tasks.setdefault(name, task)

    _shared.append(adopt)
    for app in _applications:
        adopt(app)
    return task


def _check_call(options: dict[str, Any]) -> None:
    for name in options:
        if name not in OPTIONS:
            instead = "name the queue" if name in {"exchange", "routing_key"} else ""
            raise NotCovered(f"the option {name} of a call", instead)
    if options.get("serializer") not in (None, "json"):
        raise NotCovered(f"serializer={options['serializer']!r}")


def _event_type(name: str) -> str | None:
    """Return the task's name if it is a valid event type, so that the console shows it."""
    return name if len(name) <= 128 and _EVENT_TYPE.fullmatch(name) else None


def _matching(routes: Any, name: str) -> Any:
    """Return the route of a task from routes by name, pattern or regular expression."""
    items = routes.items() if isinstance(routes, dict) else routes
    for pattern, route in items:
        if isinstance(pattern, re.Pattern):
            if pattern.match(name):
                return route
        elif fnmatch.fnmatchcase(name, pattern):
            return route
    return None


def _parts(calls: list[_Call]) -> Iterator[list[_Call]]:
    """Split the calls into parts that the broker accepts in one request."""
    part: list[_Call] = []
    size = 0
    for call in calls:
        length = len(call.outgoing.body)
        if part and (len(part) >= BATCH_MESSAGES or size + length > BATCH_BYTES):
            yield part
            part, size = [], 0
        part.append(call)
        size += length
    if part:
        yield part


def _raise_unless_repeated(error: HookstationError, call: _Call | None = None) -> None:
    if isinstance(error, (ConnectionFailed, RateLimited, Unavailable)):
        raise OperationalError(str(error)) from error
    known = isinstance(error, Conflict) and error.code == "idempotency_conflict"
    if call is None or not (known and call.is_repeated):
        raise error


def _import_related(packages: Any, related_name: str | None) -> None:
    if packages is None:
        from django.apps import apps  # noqa: PLC0415 - only Django applications have it

        packages = [config.name for config in apps.get_app_configs()]
    for package in packages() if callable(packages) else packages:
        module = f"{package}.{related_name}" if related_name else package
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
