"""Buttons of a row's page: ask for a reason, run one step, and show its result."""

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.enums import ActionVariant

from channels_app.admin import base
from channels_app.admin.base import action

Method = Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]


def pausing(dialog: Any) -> Method:
    """The action ``pause``: it stands there while ``has_pause_permission`` says so."""
    return action(description="Pause", icon="pause", permissions=["pause"], dialog=dialog)


def resuming(dialog: Any) -> Method:
    """Its way back, which is what somebody who comes to a halted row looks for."""
    return action(
        description="Resume",
        icon="play_arrow",
        permissions=["resume"],
        dialog=dialog,
        variant=ActionVariant.PRIMARY,
    )


class RowActions(ModelAdmin):
    """A page with such buttons."""

    def is_now(self, request: HttpRequest, object_id: Any, **state: Any) -> bool:
        """Whether this person may act, and the row, where one is named, is in that state."""
        if not self.has_operate_permission(request):
            return False
        rows = self.model._default_manager.filter(pk=object_id, **state)
        return not object_id or bool(rows.exists())

    def carry_out(
        self,
        request: HttpRequest,
        form: Any,
        object_id: str,
        step: Callable[[str, str], object],
        success_message: str,
    ) -> HttpResponse:
        """Do it as this person, for the reason of the dialog; then to the page, if it is there."""
        with base.telling(request, success_message):
            step(base.actor(request), form.cleaned_data["reason"])
        if self.model._default_manager.filter(pk=object_id).exists():
            return base.leave_dialog(self.page_of(object_id))
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        return base.leave_dialog(reverse(name))
