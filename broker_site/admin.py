"""Admin pages of people and of django-q2's tables, in the console's clothes."""

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.http import HttpRequest, HttpResponse
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from channels_app.admin import base
from channels_app.admin.people import Audited
from channels_app.models import AuditEntry
from channels_app.ui.accounts import secure_admin_login

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
class GroupAdmin(DjangoGroupAdmin, Audited):  # type: ignore[misc]
    """What groups of people may do."""

    noun = "group"
    filter_horizontal = ()


def restyle(model: Any) -> None:
    """Keep a foreign page's columns and actions and give it the console's look."""
    former = type(admin.site.get_model_admin(model))
    admin.site.unregister(model)
    admin.site.register(model, type(former.__name__, (former, ModelAdmin), {}))


# By name: only delivery.runtime imports django-q2, and only the portal's accounts allauth.
for _app in ("django_q", "account"):
    for _model in apps.get_app_config(_app).get_models():
        if admin.site.is_registered(_model):
            restyle(_model)

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


# People sign in at one door only, which counts wrong passwords (decision 12).
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]
