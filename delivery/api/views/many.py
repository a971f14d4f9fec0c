"""Many messages: move or cancel up to 200 at once, with a result for each."""

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar

from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app import clock
from channels_app.api import problems
from channels_app.api.base import ApiView
from channels_app.errors import BrokerError, Invalid
from channels_app.rules.fields import Field
from channels_app.rules.preconditions import ALWAYS, Precondition
from delivery.api import bodies, documents, policy
from delivery.rules.principal import Principal
from delivery.runtime import wakeups
from delivery.steps import cancel, reschedule

MAX_MESSAGES = 200
"""They are locked and written together: a request should not last seconds."""

Item = dict[str, Any]
Result = dict[str, Any]
Step = Callable[[Mapping[int, Item], Principal, datetime], Mapping[int, Result | BrokerError]]
"""Changes messages by key, each as its item says."""


class MoveView(ApiView):
    """Give many messages other places on the timeline."""

    scopes: ClassVar = {"POST": ("publish",)}

    @documents.move_messages
    def post(self, request: Request) -> Response:
        """Move up to 200 messages that wait, each to a place of its own.

        Each is moved or refused by itself, as PATCH of one would do it; `version` is what If-Match
        would say.
        """
        moved: set[int] = set()

        def move(items: Mapping[int, Item], principal: Principal, now: datetime) -> dict[int, Any]:
            results: dict[int, Result | BrokerError] = {}
            moves: dict[int, reschedule.Move] = {}
            for key, item in items.items():
                condition = _condition(item)
                try:
                    values = bodies.move_of(item, now)
                except BrokerError as refused:
                    results[key] = refused
                else:
                    moves[key] = reschedule.Move(condition=condition, **values)
            for key, done in reschedule.reschedule_many(moves, principal, now=now).items():
                if isinstance(done, BrokerError):
                    results[key] = done
                    continue
                moved.update(done.consumer_ids)
                results[key] = {"status": 200, "version": done.message.version}
            return results

        answer = _each(self, request, bodies.MOVE_ITEM, move)
        wakeups.notify_pumps(moved)
        return answer


class CancelView(ApiView):
    """Take many messages back."""

    scopes: ClassVar = {"POST": ("publish",)}

    @documents.cancel_messages
    def post(self, request: Request) -> Response:
        """Cancel what is still queued of up to 200 messages.

        Each is cancelled or refused by itself, as DELETE of one would do it; `version` is what
        If-Match would say.
        """

        def take_back(
            items: Mapping[int, Item], principal: Principal, now: datetime
        ) -> dict[int, Any]:
            done = cancel.cancel_messages(
                {key: _condition(item) for key, item in items.items()},
                principal,
                now=now,
                slot=os.getpid(),
                unless_sent=True,
            )
            return {
                key: one
                if isinstance(one, BrokerError)
                else {
                    "status": 200,
                    "version": one.message.version,
                    "cancelled_count": one.cancelled_count,
                }
                for key, one in done.items()
            }

        return _each(self, request, bodies.CANCEL_ITEM, take_back)


def _each(view: ApiView, request: Request, known: Mapping[str, Field], step: Step) -> Response:
    """Every item's own result, in the request's order. Raises ApiProblem and Invalid."""
    values = bodies.read(request, bodies.MANY)
    items = values["messages"]
    if not isinstance(items, list):
        raise Invalid("invalid_fields", "A list of objects is needed.", field="messages")
    if len(items) > MAX_MESSAGES:
        raise Invalid("batch_too_large", f"Send at most {MAX_MESSAGES} at once.", field="messages")
    principal = policy.principal_of(view.caller, values.get("reason", ""))
    results: dict[int, Result | Exception] = {}
    wanted: dict[int, Item] = {}
    for place, item in enumerate(items):
        try:
            wanted[place] = bodies.cleaned(item, known)
        except Invalid as refused:
            results[place] = refused
    rows = policy.own_messages(view.caller, {item["id"] for item in wanted.values()})
    keys: dict[int, int] = {}
    for place, item in wanted.items():
        row = rows[item.pop("id")]
        if isinstance(row, Exception):
            results[place] = row
        else:
            keys[place] = row.id
    # One that stands there twice is changed twice: in the order of the request.
    while keys:
        turn = {key: place for place, key in reversed(keys.items())}
        done = step({key: wanted[place] for key, place in turn.items()}, principal, clock.now())
        for key, place in turn.items():
            results[place] = done[key]
            del keys[place]
    shown: list[Result] = [
        {"id": _name(item)} | _representation(results[place]) for place, item in enumerate(items)
    ]
    count = sum(result["status"] == 200 for result in shown)
    return Response({"items": shown, "done": count, "refused": len(shown) - count}, status=207)


def _condition(item: Item) -> Precondition:
    """The version that the message must have."""
    version = item.pop("version", None)
    return ALWAYS if version is None else Precondition(frozenset({version}), must_exist=True)


def _name(item: object) -> str | None:
    name = item.get("id") if isinstance(item, dict) else None
    return (
        name[:100].encode("ascii", "backslashreplace").decode() if isinstance(name, str) else None
    )


def _representation(result: Result | Exception) -> Result:
    if isinstance(result, BrokerError):
        problem = problems.document(result.status, result.code, result.detail, field=result.field)
    elif isinstance(result, PermissionDenied):
        problem = problems.document(403, str(result.get_codes()), str(result.detail))
    else:
        assert not isinstance(result, Exception)
        return result
    names = ("status", "code", "detail", "field")
    return {name: problem[name] for name in names if name in problem}
