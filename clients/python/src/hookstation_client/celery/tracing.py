"""Run a received task, and send the calls that follow it."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any

from hookstation_client.celery import canvas
from hookstation_client.celery.exceptions import ChordError, Ignore, NotRegistered, Reject, Retry
from hookstation_client.celery.protocol import TaskMessage, derived_id, new_id
from hookstation_client.celery.result import (
    FAILURE,
    IGNORED,
    RETRY,
    SUCCESS,
    EagerResult,
)
from hookstation_client.celery.task import Context, Task

if TYPE_CHECKING:
    from hookstation_client.celery.app import Celery

logger = logging.getLogger("hookstation_client.celery")


def run(app: Celery, message: TaskMessage, **place: Any) -> None:
    """Run a received task, store its result, and send the calls that follow it.

    When it returns, the caller may acknowledge the message, because the result is stored. Raises
    `NotRegistered`, `Reject`, and the client's errors; then the message must be delivered again.
    """
    task = app.tasks.get(message.task)
    if task is None:
        raise NotRegistered(message.task)
    request = Context.of(message, **place)
    with task.running(request):
        status, value, trace = _attempt(task, request)
        if status == SUCCESS:
            _succeed(app, task, request, value)
        elif status == FAILURE:
            _fail(app, task, request, value, trace)


def _attempt(task: Task, request: Context) -> tuple[str, Any, str | None]:
    """Call the task; return its status, value and traceback. Raises Reject."""
    name, args, kwargs = f"{task.name}[{request.id}]", request.args, request.kwargs
    trace = None
    try:
        task.before_start(str(request.id), args, kwargs)
        status, value = SUCCESS, task(*args, **kwargs)
        logger.info("Task %s succeeded", name)
    except Retry as retry:
        status, value, trace = RETRY, retry, traceback.format_exc()
        task.on_retry(retry.exc, str(request.id), args, kwargs, trace)
        logger.info("Task %s is retried: %r", name, retry.exc)
    except Ignore:
        status, value = IGNORED, None
        logger.info("Task %s is ignored", name)
    except Reject:
        raise
    except Exception as error:
        status, value, trace = FAILURE, error, traceback.format_exc()
        if isinstance(error, tuple(task.throws)):
            logger.info("Task %s raised expected: %r", name, error)
        else:
            logger.error("Task %s raised unexpected: %r", name, error, exc_info=True)
    return status, value, trace


def _succeed(app: Celery, task: Task, request: Context, value: Any) -> None:
    _store(app, task, request, SUCCESS, value, None)
    with app.batch():
        for index, callback in enumerate(request.callbacks or ()):
            _follow(app, request, callback, (value,), "link", index)
        if request.chain:
            step, *rest = request.chain
            _follow(app, request, step, (value,), "chain", rest=rest)
    if request.chord:
        _count(app, request.chord, request.group_index)
    _end(task, request, SUCCESS, value, None)


def _fail(app: Celery, task: Task, request: Context, error: Any, trace: str | None) -> None:
    _store(app, task, request, FAILURE, error, trace)
    _call_errbacks(app, request.errbacks, request, error, trace)
    if request.chord:
        _count(app, request.chord, request.group_index)
    _end(task, request, FAILURE, error, trace)


def _end(task: Task, request: Context, status: str, value: Any, trace: str | None) -> None:
    """Call the task's hooks. Logs their errors, because the task has already ended."""
    call = (str(request.id), request.args, request.kwargs)
    try:
        if status == SUCCESS:
            task.on_success(value, *call)
        else:
            task.on_failure(value, *call, trace)
        task.after_return(status, value, *call, trace)
    except Exception:
        logger.exception("A hook of the task %s failed", task.name)


def _store(
    app: Celery, task: Task, request: Context, status: str, value: Any, trace: str | None
) -> None:
    if not app.conf.result_backend:
        return
    said = request.ignore_result
    ignored = task.ignore_result if said is None else said
    ignored = app.conf.task_ignore_result if ignored is None else ignored
    if ignored and status == FAILURE:
        kept = task.store_errors_even_if_ignored
        ignored = not (app.conf.task_store_errors_even_if_ignored if kept is None else kept)
    # A chord needs the results of its header, even if they are ignored otherwise.
    if not ignored or request.chord:
        app.results.store(
            str(request.id), status, value, trace, name=task.name, parent_id=request.parent_id
        )


def _follow(
    app: Celery,
    request: Context,
    call: Any,
    args: tuple[Any, ...],
    kind: str,
    index: int = 0,
    rest: Any = (),
) -> None:
    """Send a call that follows a task, only once even if the task runs again."""
    call = canvas.maybe_signature(call, app).clone()
    call.options.setdefault("task_id", derived_id(str(request.id), kind, index))
    if rest:
        call.options["chain"] = list(rest)
    with app.repeated():
        call.apply_async(args)


def _call_errbacks(app: Celery, errbacks: Any, request: Context, error: Any, trace: Any) -> None:
    """Call errbacks of ``(request, exc, traceback)`` here; send others with the task's id."""
    for index, one in enumerate(errbacks or ()):
        errback = canvas.maybe_signature(one, app)
        task = app.tasks.get(errback.task)
        code = getattr(getattr(task, "run", None), "__code__", None)
        if task is None or code is None or code.co_argcount < 3:
            _follow(app, request, errback, (request.id,), "link_error", index)
            continue
        try:
            errback.clone((request, error, trace))()
        except Exception:
            logger.exception("The errback %s failed", errback.task)


def _count(app: Celery, chord: dict[str, Any], index: int | None) -> None:
    """Send the body of a chord if all results of its header are stored.

    The task that stores the last result finds all of them. If several tasks do, they send the same
    message, which the broker stores once. The check begins after the task's own result, so if
    tasks end in order, the first look-up finds the next one missing.
    """
    ids = [derived_id(chord["group"], place) for place in range(chord["size"])]
    behind = (index or 0) + 1
    if not all(app.results.is_stored(one) for one in ids[behind:] + ids[:behind]):
        return
    found = [app.results.read(one) or {} for one in ids]
    body = canvas.maybe_signature(chord["body"], app)
    for one in found:
        if one.get("status") != SUCCESS:
            return _fail_chord(app, body, one)
    with app.repeated():
        body.apply_async(([one["result"] for one in found],))


def _fail_chord(app: Celery, body: Any, failed: dict[str, Any]) -> None:
    error = failed.get("result") or {}
    args = tuple(error.get("exc_message", ()))
    shown = f"{error.get('exc_type')}({', '.join(map(repr, args))})"
    error = ChordError(f"Dependency {failed.get('task_id')} raised {shown}")
    body_id = body.freeze().id
    app.results.store(body_id, FAILURE, error, failed.get("traceback"), name=body.task)
    request = Context(id=body_id, task=body.task, args=(), kwargs={}, called_directly=False)
    _call_errbacks(app, body.options.get("link_error"), request, error, failed.get("traceback"))
    if chord := body.options.get("chord"):
        _count(app, chord, body.options.get("group_index"))


def apply_eagerly(
    task: Task, args: Any, kwargs: Any, throw: bool | None, options: dict[str, Any]
) -> EagerResult:
    """Run a task in this process, with its retries and links."""
    app = task.app
    task_id = options.get("task_id") or new_id()
    request = Context(
        id=task_id,
        task=task.name,
        args=list(args),
        kwargs=dict(kwargs),
        retries=options.get("retries", 0),
        headers=options.get("headers"),
        called_directly=False,
        is_eager=True,
        delivery_info={"is_eager": True},
    )
    with task.running(request):
        status, value, trace = _attempt(task, request)
        if status == RETRY:
            again = value.sig
            return task.apply(
                again.args, again.kwargs, throw, task_id=task_id, retries=request.retries + 1
            )
        for callback in canvas.as_list(options.get("link")) if status == SUCCESS else ():
            canvas.maybe_signature(callback, app).apply((value,))
        if status == FAILURE:
            _call_errbacks(app, canvas.as_list(options.get("link_error")), request, value, trace)
        if status in {SUCCESS, FAILURE}:
            _end(task, request, status, value, trace)
    throw = app.conf.task_eager_propagates if throw is None else throw
    if throw and status == FAILURE:
        raise value
    return EagerResult(task_id, value, status, trace, app=app)
