"""Stopping: the button of what goes on by itself, the same for replays, restores and runs."""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, Protocol

from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from unfold.enums import ActionVariant

from channels_app import clock
from channels_app.admin import base
from channels_app.admin.base import action
from delivery.rules.asker import Asker


class Cancel(Protocol):
    """A step that stops one of them."""

    def __call__(self, number: int, asker: Asker, /, *, now: datetime) -> Any:
        """By its number."""


class Stoppable(base.ReadOnly):
    """A page with the button, which stands there only while there is something to stop."""

    open_states: Collection[str] = ()
    """In which it goes on."""

    def is_open(self, row: Model) -> bool:
        """Whether it goes on."""
        return getattr(row, "state", None) in self.open_states

    def has_stop_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Only what goes on can be stopped."""
        if not self.has_operate_permission(request):
            return False
        mine = self.model._default_manager.filter(pk=object_id, state__in=self.open_states)
        return not object_id or mine.exists()


def button(question: Any, told: str, cancel: Cancel) -> Callable[..., HttpResponse]:
    """The action ``stop`` of a page: asks for a reason, stops it, says so."""

    def stop(self: Any, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        asker = Asker(base.actor(request), form.cleaned_data["reason"])
        with base.telling(request, told):
            cancel(int(object_id), asker, now=clock.now())
        return base.leave_dialog(self.page_of(object_id))

    made: Callable[..., HttpResponse] = action(
        description="Stop",
        icon="stop_circle",
        permissions=["stop"],
        dialog=question,
        variant=ActionVariant.DANGER,
    )(stop)
    return made
