"""Signatures, chains, groups and chords: calls of tasks as values, and their combinations.

The message of a chain contains the remaining calls, and each step sends the next one. The tasks in
a chord's header store their results; the task that finds all of them stored sends the body. The
application chooses all ids when it sends the whole, and the idempotency keys of later messages
derive from them. So a task that runs twice because a worker was killed sends the next call once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hookstation_client.celery.exceptions import NotCovered
from hookstation_client.celery.protocol import derived_id, new_id

if TYPE_CHECKING:
    from hookstation_client.celery.app import Celery
    from hookstation_client.celery.result import AsyncResult

_apps: list[Celery] = []
"""All applications, the current one last."""


def current_app() -> Celery:
    """Return the application that was created or made current last."""
    if not _apps:
        raise RuntimeError("There is no application: create one with Celery(...).")
    return _apps[-1]


class Signature(dict[str, Any]):
    """A call of a task as a value. It is a dict, so that JSON can encode it."""

    subtask_type: str | None = None

    def __init__(
        self,
        task: Any = None,
        args: Any = None,
        kwargs: Any = None,
        options: dict[str, Any] | None = None,
        immutable: bool = False,
        app: Celery | None = None,
        **more: Any,
    ) -> None:
        super().__init__(
            task=task if isinstance(task, str) else task.name,
            args=list(args or ()),
            kwargs=dict(kwargs or {}),
            options={**(options or {}), **more},
            subtask_type=self.subtask_type,
            immutable=immutable,
        )
        self._app = app or getattr(task, "_app", None)

    @property
    def app(self) -> Celery:
        """The application that sends it."""
        return self._app or current_app()

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self["task"])

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task

    @property
    def args(self) -> Any:
        """Positional arguments."""
        return self["args"]

    @property
    def kwargs(self) -> Any:
        """Keyword arguments."""
        return self["kwargs"]

    @property
    def options(self) -> dict[str, Any]:
        """Options for `Celery.send_task`."""
        options: dict[str, Any] = self["options"]
        return options

    @property
    def immutable(self) -> bool:
        """Whether it ignores the results of previous tasks."""
        return bool(self["immutable"])

    @property
    def id(self) -> str | None:
        """The task's id; None until it is frozen."""
        return self.options.get("task_id")

    def set(self, immutable: bool | None = None, **options: Any) -> Signature:
        """Change options; return itself."""
        if immutable is not None:
            self["immutable"] = immutable
        self.options.update(options)
        return self

    def clone(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        """Return a copy with more arguments in front, and with other options."""
        if self.immutable:
            args, kwargs = (), {}
        copy = Signature(
            self.task,
            [_copied(one) for one in [*(args or ()), *self.args]],
            {name: _copied(value) for name, value in {**self.kwargs, **(kwargs or {})}.items()},
            _copied_options({**self.options, **options}),
            self.immutable,
            self._app,
        )
        return copy

    partial = clone

    def freeze(self, task_id: str | None = None, **place: Any) -> AsyncResult:
        """Set the task id; return the result that the task will have.

        ``place`` is its place in a group or chord: ``group_id``, ``group_index`` and ``chord``.
        """
        if task_id:
            self.options["task_id"] = task_id
        self.options.setdefault("task_id", new_id())
        self.options.update({name: value for name, value in place.items() if value is not None})
        return self.app.AsyncResult(self.options["task_id"])

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Send the call."""
        call = Signature.clone(self, args or (), kwargs, **_linked(self.options, options))
        task = self.app.tasks.get(self.task)
        if task is not None:
            return task.apply_async(call.args, call.kwargs, **call.options)
        return self.app.send_task(self.task, call.args, call.kwargs, **call.options)

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Send the call with more arguments in front."""
        return self.apply_async(args, kwargs)

    def apply(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        """Run the task in this process and wait for it."""
        call = Signature.clone(self, args, kwargs, **options)
        return self.app.tasks[self.task].apply(call.args, call.kwargs, **call.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the task as a function."""
        call = Signature.clone(self, args, kwargs)
        return self.app.tasks[self.task](*call.args, **call.kwargs)

    def link(self, callback: Any) -> Any:
        """Send ``callback`` when the task succeeds; return it."""
        self.options["link"] = [*as_list(self.options.get("link")), callback]
        return callback

    def link_error(self, errback: Any) -> Any:
        """Call ``errback`` when the task fails; return it."""
        self.options["link_error"] = [*as_list(self.options.get("link_error")), errback]
        return errback

    def on_error(self, errback: Any) -> Signature:
        """Like `link_error`; return itself."""
        self.link_error(errback)
        return self

    def __or__(self, other: Any) -> Any:
        return joined([self, other], self._app) if _is_signature(other) else NotImplemented

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        return f"{self.task}({', '.join(given)})"

    def __hash__(self) -> int:  # type: ignore[override]  # as in Celery, by identity
        return id(self)

    def __getattr__(self, name: str) -> Any:
        if name in {"stamp", "replace", "append_stamps", "unchain_tasks", "election"}:
            raise NotCovered(f"Signature.{name}")
        raise AttributeError(name)


class _Chain(Signature):
    subtask_type = "chain"

    def __init__(self, tasks: Iterable[Any], app: Celery | None = None, **options: Any) -> None:
        super().__init__("celery.chain", kwargs={"tasks": list(tasks)}, app=app, options=options)

    @property
    def tasks(self) -> list[Any]:
        """The steps."""
        return [maybe_signature(one, self._app) for one in self.kwargs["tasks"]]

    def clone(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        first, *rest = [step.clone() for step in self.tasks]
        if args or kwargs:
            first = first.clone(args, kwargs)
        return _Chain([first, *rest], self._app, **_copied_options({**self.options, **options}))

    partial = clone

    def freeze(self, task_id: str | None = None, **place: Any) -> AsyncResult:
        steps = self.kwargs["tasks"] = self.tasks
        parent = None
        for step in steps[:-1]:
            result = step.freeze()
            result.first.parent = parent
            parent = result
        last: AsyncResult = steps[-1].freeze(task_id or self.options.get("task_id"), **place)
        last.first.parent = parent
        return last

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Send the first step; return the result of the last one."""
        if self.app.conf.task_always_eager:
            return self.apply(args or (), kwargs, **options)
        options = {**self.options, **_linked(self.options, options)}
        whole = _Chain([step.clone() for step in self.tasks], self._app)
        link, errors = as_list(options.pop("link", None)), as_list(options.pop("link_error", None))
        place = {name: options.pop(name, None) for name in ("group_id", "group_index", "chord")}
        result = whole.freeze(options.pop("task_id", None), **place)
        first, *rest = whole.tasks
        for callback in link:
            (rest[-1] if rest else first).link(callback)
        for step in [first, *rest]:
            for errback in errors:
                step.link_error(errback)
        behind = [*rest, *as_list(options.pop("chain", None))]
        if behind:
            options["chain"] = behind
        first.apply_async(args, kwargs, **options)
        return result

    def apply(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        result, passed, parent = None, tuple(args), None
        for step in self.tasks:
            result = step.apply(passed, kwargs)
            result.parent, parent = parent, result
            kwargs = None
            if not result.successful():
                break
            passed = (result.get(),)
        return result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.apply_async(args, kwargs)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.tasks))


class group(Signature):
    """Tasks that run in parallel. ``group(...) | task`` is a chord."""

    subtask_type = "group"

    def __init__(self, *tasks: Any, app: Celery | None = None, **options: Any) -> None:
        listed = tasks[0] if len(tasks) == 1 and not _is_signature(tasks[0]) else tasks
        flat: list[Any] = []
        for one in listed:
            flat += one["kwargs"]["tasks"] if one["subtask_type"] == "group" else [one]
        super().__init__("celery.group", kwargs={"tasks": flat}, app=app, options=options)

    @property
    def tasks(self) -> list[Any]:
        """The tasks."""
        return [maybe_signature(one, self._app) for one in self.kwargs["tasks"]]

    def clone(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        copied = [task.clone(args, kwargs) for task in self.tasks]
        return group(copied, app=self._app, **_copied_options({**self.options, **options}))

    partial = clone

    def freeze(self, task_id: str | None = None, **place: Any) -> Any:
        """Set the group's id; the ids of its tasks derive from it."""
        if place.get("chord"):
            raise NotCovered("a group at the end of a chain in a chord's header")
        return self.frozen_as_header(task_id, None)

    def frozen_as_header(self, group_id: str | None, body: Any) -> Any:
        """Set the ids of its tasks; ``body`` is that of the chord whose header it is."""
        if group_id:
            self.options["task_id"] = group_id
        group_id = str(self.options.setdefault("task_id", new_id()))
        tasks = self.kwargs["tasks"] = self.tasks
        results = []
        for index, task in enumerate(tasks):
            given, member = task.options.get("task_id"), derived_id(group_id, index)
            if body is not None and given not in (None, member):
                raise NotCovered("task_id in the header of a chord", "the chord chooses the ids")
            chord = {"group": group_id, "size": len(tasks), "body": body} if body else None
            results.append(
                task.freeze(given or member, group_id=group_id, group_index=index, chord=chord)
            )
        return self.app.GroupResult(group_id, results)

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Send all tasks, those of each queue in one transaction."""
        if self.app.conf.task_always_eager:
            return self.apply(args or (), kwargs, **options)
        options = {**self.options, **_linked(self.options, options)}
        whole = group([task.clone() for task in self.tasks], app=self._app)
        _refuse_behind_group(options)
        result = whole.frozen_as_header(options.pop("task_id", None), None)
        whole.send(args, kwargs, options)
        return result

    def send(self, args: Any, kwargs: Any, options: dict[str, Any]) -> None:
        """Send its tasks, which must be frozen."""
        with self.app.batch():
            for task in self.tasks:
                task.apply_async(args, kwargs, **options)

    def apply(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        return self.app.GroupResult(new_id(), [task.apply(args, kwargs) for task in self.tasks])

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.apply_async(args, **options)

    def __len__(self) -> int:
        return len(self.kwargs["tasks"])

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"group({self.tasks!r})"


class _Chord(Signature):
    subtask_type = "chord"

    def __init__(
        self, header: Any, body: Any = None, app: Celery | None = None, **options: Any
    ) -> None:
        listed = header if _is_group(header) else group(header, app=app)
        kwargs = {"header": listed, "body": body}
        super().__init__("celery.chord", kwargs=kwargs, app=app, options=options)

    @property
    def tasks(self) -> group:
        """The header."""
        header: group = maybe_signature(self.kwargs["header"], self._app)
        return header

    @property
    def body(self) -> Any:
        """The call that runs with all results of the header."""
        return maybe_signature(self.kwargs["body"], self._app)

    def clone(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        body = self.body.clone() if self.body is not None else None
        options = _copied_options({**self.options, **options})
        return _Chord(self.tasks.clone(args, kwargs), body, self._app, **options)

    partial = clone

    def freeze(self, task_id: str | None = None, **place: Any) -> Any:
        body = self.kwargs["body"] = self.body
        self.options.setdefault("group_id_of_header", new_id())
        result = body.freeze(task_id or self.options.get("task_id"), **place)
        self.options["task_id"] = result.id
        return result

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Send the header; return the result of the body."""
        if self.app.conf.task_always_eager:
            return self.apply(args or (), kwargs, **options)
        options = {**self.options, **_linked(self.options, options)}
        whole = self.clone()
        body, header = whole.body, whole.tasks
        if body is None:
            raise TypeError("A chord needs a body: chord(header)(body).")
        header_id = options.pop("group_id_of_header", None) or new_id()
        place = {name: options.pop(name, None) for name in ("group_id", "group_index", "chord")}
        for name, add in (("link", body.link), ("link_error", body.link_error)):
            for follower in as_list(options.pop(name, None)):
                add(follower)
        result = body.freeze(options.pop("task_id", None), **place)
        if not header.tasks:
            body.apply_async([[]], **options)
            return result
        self.app.require_backend("a chord")
        result.first.parent = header.frozen_as_header(header_id, body)
        header.send(args, kwargs, options)
        return result

    def apply(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        results = self.tasks.apply(args, kwargs)
        return self.body.apply((results.get(),))

    def __call__(self, body: Any = None, **options: Any) -> Any:
        if body is not None:
            return _Chord(self.tasks, body, self._app, **self.options).apply_async(**options)
        return self.apply_async(**options)

    def __repr__(self) -> str:
        return f"chord({self.tasks!r}, {self.body!r})"


def signature(task: Any, args: Any = None, *more: Any, **options: Any) -> Any:
    """Return a signature for a task, for its name, or for a decoded signature."""
    if isinstance(task, dict) and not more and args is None:
        return maybe_signature(task, options.get("app"))
    return Signature(task, args, *more, **options)


subtask = signature


def maybe_signature(value: Any, app: Celery | None = None) -> Any:
    """Return a decoded signature as an object; None stays None."""
    if value is None or isinstance(value, Signature):
        return value
    kwargs, options = value["kwargs"], dict(value["options"])
    kind = value["subtask_type"]
    if kind == "chain":
        return _Chain(kwargs["tasks"], app, **options)
    if kind == "group":
        return group(kwargs["tasks"], app=app, **options)
    if kind == "chord":
        return _Chord(maybe_signature(kwargs["header"], app), kwargs["body"], app, **options)
    return Signature(value["task"], value["args"], kwargs, options, value["immutable"], app)


def chain(*tasks: Any, app: Celery | None = None) -> Any:
    """Return a chain: each task gets the result of the previous one."""
    listed = list(tasks[0]) if len(tasks) == 1 and not _is_signature(tasks[0]) else list(tasks)
    if len(listed) == 1:
        return _Chain(listed, app)
    return joined(listed, app)


def chord(header: Any, body: Any = None, app: Celery | None = None, **options: Any) -> Any:
    """Return a chord: a group, and a task that gets the list of its results."""
    return _Chord(header, body, app, **options)


def joined(parts: Iterable[Any], app: Celery | None = None) -> Any:
    """Return a chain of the parts. A group with its next task becomes a chord."""
    steps: list[Any] = []
    for part in parts:
        for step in part.tasks if isinstance(part, _Chain) else [maybe_signature(part, app)]:
            if steps and isinstance(steps[-1], group):
                steps[-1] = _Chord(steps[-1], step, app)
            elif steps and isinstance(steps[-1], _Chord) and steps[-1].body is not None:
                before = steps[-1]
                steps[-1] = _Chord(
                    before.tasks, joined([before.body, step], app), app, **before.options
                )
            else:
                steps.append(step)
    return steps[0] if len(steps) == 1 and isinstance(steps[0], _Chord) else _Chain(steps, app)


def as_list(value: Any) -> list[Any]:
    """Return a list of several values, one or none."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _linked(options: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return more options, with their links appended to existing ones."""
    added = dict(more)
    for name in ("link", "link_error"):
        if name in more and name in options:
            added[name] = [*as_list(options[name]), *as_list(more[name])]
    return added


def _refuse_behind_group(options: dict[str, Any]) -> None:
    for name in ("chain", "chord", "link"):
        if options.pop(name, None):
            raise NotCovered(f"{name} behind a group", "make it a chord")


def _is_signature(value: Any) -> bool:
    return isinstance(value, dict) and "subtask_type" in value


def _is_group(value: Any) -> bool:
    return _is_signature(value) and value["subtask_type"] == "group"


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Signature) else value


def _copied_options(options: dict[str, Any]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, list) else value for name, value in options.items()
    }
