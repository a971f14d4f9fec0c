"""Admin pages of people and of django-q2's tables, in the console's clothes."""

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from channels_app.admin import base
from channels_app.admin.people import Audited
from channels_app.models import AuditEntry

admin.site.unregister(User)
admin.site.unregister(Group)


@admin.register(User)
# Generic to the type checker only; at run time it takes no parameter.
class UserAdmin(DjangoUserAdmin, Audited):  # type: ignore[type-arg]
    """People who may use the console."""

    noun = "user"
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    # Two lists side by side do not fit: one field that finds what is typed does.
    filter_horizontal = ()
    autocomplete_fields = ("groups",)

    def user_change_password(
        self, request: HttpRequest, id: str, form_url: str = ""
    ) -> HttpResponse:
        """Django's page, and a line in the audit log when it has done something."""
        answer = super().user_change_password(request, id, form_url)
        if request.method == "POST" and answer.status_code == 302:
            target = self.audit_target(self.get_object(request, id))
            AuditEntry.record(base.actor(request), "user.set_password", target)
        return answer


@admin.register(Group)
# To the type checker both bases disagree on a field; ours has what Django's has.
class GroupAdmin(DjangoGroupAdmin, Audited):  # type: ignore[misc]
    """What groups of people may do."""

    noun = "group"
    filter_horizontal = ()


FOREIGN = {
    "account.EmailAddress": "email",
    "django_q.Schedule": "schedule",
    "django_q.OrmQ": "queued_task",
    "django_q.Success": "task",
    "django_q.Failure": "failed_task",
}
"""Tables of others, and what the audit log calls their rows."""


class Foreign(Audited):
    """A page of others: their columns and actions, our look and our books."""

    def get_actions(self, request: HttpRequest) -> Any:
        """Those who only look have none: the actions themselves do not ask."""
        return super().get_actions(request) if self.has_operate_permission(request) else {}

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        """The action, and a line for each row that was chosen; a deletion writes its own."""
        name = request.POST.get("action", "")
        chosen = queryset.filter(pk__in=request.POST.getlist(ACTION_CHECKBOX_NAME))
        targets = [self.audit_target(row) for row in chosen]
        with transaction.atomic():
            answer = super().response_action(request, queryset)
            if name in self.get_actions(request) and name != "delete_selected":
                for target in targets:
                    AuditEntry.record(base.actor(request), f"{self.noun}.{name}", target)
        return answer


def restyle(model: Any, noun: str) -> None:
    """Give a foreign page the console's look, and its changes a line in the audit log."""
    former = type(admin.site.get_model_admin(model))
    # Those of django-q2's queue would pass the books by.
    ours = {"save_model": Audited.save_model, "delete_model": Audited.delete_model, "noun": noun}
    admin.site.unregister(model)
    admin.site.register(model, type(former.__name__, (former, Foreign), ours))


# By name: only delivery.runtime imports django-q2, and only the portal's accounts allauth.
for _name, _noun in FOREIGN.items():
    restyle(apps.get_model(_name), _noun)

_Authenticator = apps.get_model("mfa", "Authenticator")
admin.site.unregister(_Authenticator)


@admin.register(_Authenticator)
class AuthenticatorAdmin(Audited):
    """Second factors: taken away from who has lost theirs, never shown."""

    noun = "second_factor"
    list_display = ("user", "type", "created_at", "last_used_at")
    list_select_related = ("user",)
    search_fields = ("user__username", "user__email")
    fields = readonly_fields = list_display

    def title_of(self, obj: Any) -> str:
        """Whose it was, and of which kind."""
        return f"{obj.user}/{obj.type}"

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Only by the person."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Only by the person."""
        return False
