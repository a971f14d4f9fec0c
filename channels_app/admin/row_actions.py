"""Add buttons to a row's page that ask for a reason, run one step and show its result."""

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
    """The action ``pause``, shown while ``has_pause_permission`` allows it."""
    return action(description="Pause", icon="pause", permissions=["pause"], dialog=dialog)


def resuming(dialog: Any) -> Method:
    """The action ``resume``, highlighted, since it is what users of a paused row look for."""
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
        """Whether the user may act, and the row, if one is given, is in that state."""
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
        """Run the step as this user for the dialog's reason; then show the row if it exists."""
        with base.telling(request, success_message):
            step(base.actor(request), form.cleaned_data["reason"])
        if self.model._default_manager.filter(pk=object_id).exists():
            return base.leave_dialog(self.page_of(object_id))
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        return base.leave_dialog(reverse(name))
