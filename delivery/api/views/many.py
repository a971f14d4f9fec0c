"""Many messages: move or cancel up to 200 at once, with a result for each."""

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app import clock
from channels_app.api import problems
from channels_app.api.base import ApiView
from channels_app.errors import BrokerError, Invalid
from channels_app.rules.conditions import ALWAYS, Condition
from channels_app.rules.fields import Field
from delivery.api import bodies, documents, reach
from delivery.models import Delivery
from delivery.rules.asker import Asker
from delivery.runtime import wake
from delivery.steps import cancel, reschedule

MOST = 200
"""Each is a transaction of its own, of a few milliseconds; a request should not last seconds."""


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

        def move(item: dict[str, Any], asker: Asker) -> dict[str, Any]:
            row, condition = _found(self, item)
            now = clock.now()
            values = bodies.move_of(item, now)
            done = reschedule.reschedule(row, asker, now=now, condition=condition, **values)
            queued = Delivery.objects.filter(message_id=row, state="queued")
            moved.update(queued.values_list("consumer_id", flat=True))
            return {"status": 200, "version": done.version}

        answer = _each(self, request, bodies.MOVE_ITEM, move)
        wake.hurry(moved)
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

        def take_back(item: dict[str, Any], asker: Asker) -> dict[str, Any]:
            row, condition = _found(self, item)
            done = cancel.cancel_message(
                row,
                asker,
                now=clock.now(),
                slot=os.getpid(),
                condition=condition,
                unless_sent=True,
            )
            count = done.cancelled_count
            return {"status": 200, "version": done.message.version, "cancelled_count": count}

        return _each(self, request, bodies.CANCEL_ITEM, take_back)


def _each(
    view: ApiView,
    request: Request,
    known: Mapping[str, Field],
    step: Callable[[dict[str, Any], Asker], dict[str, Any]],
) -> Response:
    """Every item's own result, in the request's order. Raises ApiProblem and Invalid."""
    values = bodies.read(request, bodies.MANY)
    items = values["messages"]
    if not isinstance(items, list):
        raise Invalid("invalid_fields", "A list of objects is needed.", field="messages")
    if len(items) > MOST:
        raise Invalid("batch_too_large", f"Send at most {MOST} at once.", field="messages")
    asker = reach.asker_of(view.caller, values.get("reason", ""))
    results = []
    for item in items:
        name = item.get("id") if isinstance(item, dict) else None
        named = {"id": _printable(name) if isinstance(name, str) else None}
        try:
            results.append(named | step(bodies.cleaned(item, known), asker))
        except BrokerError as refused:
            told = problems.document(
                refused.status, refused.code, refused.detail, field=refused.field
            )
            results.append(named | _told(told))
        except PermissionDenied as refused:
            told = problems.document(403, str(refused.get_codes()), str(refused.detail))
            results.append(named | _told(told))
    done = sum(result["status"] == 200 for result in results)
    return Response({"items": results, "done": done, "refused": len(results) - done}, status=207)


def _found(view: ApiView, item: dict[str, Any]) -> tuple[int, Condition]:
    """The message that an item means, and the version that it must have."""
    row = reach.own_message(view.caller, item.pop("id"))
    version = item.pop("version", None)
    return row.id, ALWAYS if version is None else Condition(frozenset({version}), must_exist=True)


def _printable(name: str) -> str:
    return name[:100].encode("ascii", "backslashreplace").decode()


def _told(problem: dict[str, Any]) -> dict[str, Any]:
    return {
        name: problem[name] for name in ("status", "code", "detail", "field") if name in problem
    }
