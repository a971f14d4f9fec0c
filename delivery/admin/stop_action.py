"""Provide the button that stops replays, restores and pipeline runs."""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, Protocol

from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from unfold.enums import ActionVariant

from channels_app import clock
from channels_app.admin import base
from channels_app.admin.base import action
from channels_app.admin.row_actions import RowActions
from delivery.rules.principal import Principal


class Step(Protocol):
    """A step that changes one row."""

    def __call__(self, number: int, principal: Principal, /, *, now: datetime) -> Any:
        """Change the row with this number."""


def of(object_id: str, step: Step) -> Callable[[str, str], Any]:
    """Return the step for this row, in the form for `RowActions.carry_out`."""
    return lambda actor, reason: step(int(object_id), Principal(actor, reason), now=clock.now())


class Stoppable(RowActions, base.ReadOnly):
    """A page with a stop button while its row is active."""

    open_states: Collection[str] = ()
    """States in which the row is active."""

    def is_open(self, row: Model) -> bool:
        """Whether the row is active."""
        return getattr(row, "state", None) in self.open_states

    def has_stop_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Whether the row is active."""
        return self.is_now(request, object_id, state__in=self.open_states)


def button(question: Any, success_message: str, cancel: Step) -> Callable[..., HttpResponse]:
    """Return a page's action ``stop``, which asks for a reason, stops the row and confirms it."""

    def stop(self: Any, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        done: HttpResponse = self.carry_out(
            request, form, object_id, of(object_id, cancel), success_message
        )
        return done

    made: Callable[..., HttpResponse] = action(
        description="Stop",
        icon="stop_circle",
        permissions=["stop"],
        dialog=question,
        variant=ActionVariant.DANGER,
    )(stop)
    return made
