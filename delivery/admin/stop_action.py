"""The button that stops a running job: the same for replays, restores and pipeline runs."""

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
    """A step that does something with one row."""

    def __call__(self, number: int, principal: Principal, /, *, now: datetime) -> Any:
        """By its number."""


def of(object_id: str, step: Step) -> Callable[[str, str], Any]:
    """The step for this row, now, as `RowActions.carry_out` does it."""
    return lambda actor, reason: step(int(object_id), Principal(actor, reason), now=clock.now())


class Stoppable(RowActions, base.ReadOnly):
    """A page with the button, which stands there only while there is something to stop."""

    open_states: Collection[str] = ()
    """In which it goes on."""

    def is_open(self, row: Model) -> bool:
        """Whether it goes on."""
        return getattr(row, "state", None) in self.open_states

    def has_stop_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Only what goes on can be stopped."""
        return self.is_now(request, object_id, state__in=self.open_states)


def button(question: Any, told: str, cancel: Step) -> Callable[..., HttpResponse]:
    """The action ``stop`` of a page: asks for a reason, stops it, says so."""

    def stop(self: Any, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        done: HttpResponse = self.carry_out(request, form, object_id, of(object_id, cancel), told)
        return done

    made: Callable[..., HttpResponse] = action(
        description="Stop",
        icon="stop_circle",
        permissions=["stop"],
        dialog=question,
        variant=ActionVariant.DANGER,
    )(stop)
    return made
