"""Admin pages of people and of django-q2's tables, with the console's look."""

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest, HttpResponse
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from channels_app.admin import base, granting
from channels_app.admin.people import Audited
from channels_app.models import AuditEntry
from channels_app.rules import access
from delivery.runtime import task_queue

admin.site.unregister(User)
admin.site.unregister(Group)


class RolesExplained(base.Page):
    """A list that says above itself what the ready roles are."""

    list_before_template = "admin/roles_top.html"

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """With what the ready roles are."""
        return super().changelist_view(request, {"roles": access.ROLES} | (extra_context or {}))


@admin.register(User)
# Generic to the type checker only; at run time it takes no parameter.
class UserAdmin(granting.GrantsPermissions, RolesExplained, DjangoUserAdmin, Audited):  # type: ignore[type-arg]
    """People who may use the console."""

    noun = "user"
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    # Two lists side by side do not fit: one field that finds what is typed does.
    filter_horizontal = ()
    autocomplete_fields = ("groups",)

    def owner_of(self, obj: Any) -> User:
        """The row itself."""
        person: User = obj
        return person

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Only superusers make superusers."""
        fixed = () if getattr(request.user, "is_superuser", False) else ("is_superuser",)
        return (*super().get_readonly_fields(request, obj), *fixed)

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """What the one who gives has, too."""
        if db_field.name == "groups":
            kwargs["queryset"] = granting.groups(request.user)
        elif db_field.name == "user_permissions":
            kwargs["queryset"] = granting.permissions(request.user)
        return super().formfield_for_manytomany(db_field, request, **kwargs)

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
class GroupAdmin(RolesExplained, DjangoGroupAdmin, Audited):  # type: ignore[misc]
    """What groups of people may do. The ready roles are the same everywhere (rules/access.py)."""

    noun = "group"
    filter_horizontal = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        """With what the names of permissions are made of."""
        rows: QuerySet[Group] = super().get_queryset(request)
        return rows.prefetch_related("permissions__content_type")

    def formfield_for_manytomany(
        self, db_field: Any, request: HttpRequest | None = None, **kwargs: Any
    ) -> Any:
        """What the one who gives has, too."""
        if db_field.name == "permissions" and request is not None:
            kwargs["queryset"] = granting.permissions(request.user)
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Not of a ready role, nor of a group that has more than they have."""
        return super().has_change_permission(request, obj) and _may_change(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """As for changes."""
        return super().has_delete_permission(request, obj) and _may_change(request, obj)


def _may_change(request: HttpRequest, group: Group | None) -> bool:
    if group is None:
        return True
    if group.name.casefold() in granting.ROLE_NAMES:
        return False
    return granting.groups(request.user).filter(pk=group.pk).exists()


class AddressAdmin(granting.GrantsPermissions, Audited):
    """Allauth's page of addresses, with the console's look and its changes in the audit log."""

    noun = "email"

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Of people who have no more: whoever has somebody's address can set their password."""
        if db_field.name == "user":
            kwargs["queryset"] = granting.people(request.user)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def get_actions(self, request: HttpRequest) -> Any:
        """Those who only look have none: the actions themselves do not ask."""
        return super().get_actions(request) if self.has_operate_permission(request) else {}

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        """The action, and a line for each row that was chosen; a deletion writes its own."""
        name = request.POST.get("action", "")
        queryset = queryset.filter(user__in=granting.people(request.user))
        chosen = queryset.filter(pk__in=request.POST.getlist(ACTION_CHECKBOX_NAME))
        targets = [self.audit_target(row) for row in chosen]
        with transaction.atomic():
            answer = super().response_action(request, queryset)
            if name in self.get_actions(request) and name != "delete_selected":
                for target in targets:
                    AuditEntry.record(base.actor(request), f"{self.noun}.{name}", target)
        return answer


def _taken_over(name: str) -> Any:
    """A model whose page another app has registered, for a page of ours.

    By name: only delivery.runtime imports django-q2, and only the portal's accounts allauth.
    """
    model = apps.get_model(name)
    admin.site.unregister(model)
    return model


_EmailAddress = apps.get_model("account", "EmailAddress")
_AllauthsPage = type(admin.site.get_model_admin(_EmailAddress))
admin.site.unregister(_EmailAddress)
admin.site.register(_EmailAddress, type("EmailAddressAdmin", (_AllauthsPage, AddressAdmin), {}))


@admin.register(_taken_over("mfa.Authenticator"))
class AuthenticatorAdmin(granting.GrantsPermissions, Audited):
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


ERROR = '<pre class="hs-pre">{}</pre>'


# -- Background tasks: django-q2's own pages unpickle what stands in its tables, ours do not ------


@admin.register(_taken_over("django_q.Schedule"))
class ScheduleAdmin(base.ReadOnly):
    """What starts background tasks from time to time."""

    list_display = ("name", "func", "registered", "minutes", "next_run", "active")
    fields = readonly_fields = (*list_display, "schedule_type", "cluster")
    ordering = ("name",)

    @base.display(description="Registered", boolean=True)
    def registered(self, schedule: Any) -> bool:
        """Whether a worker would call it."""
        return schedule.func in task_queue.REGISTERED

    @base.display(description="Active", boolean=True)
    def active(self, schedule: Any) -> bool:
        """Whether it goes on starting its task."""
        return bool(schedule.repeats != 0)


@admin.register(_taken_over("django_q.OrmQ"))
class QueuedTaskAdmin(base.ReadOnly):
    """Background tasks that wait or are at work."""

    list_display = ("id", "task", "registered", "key", "lock")
    fields = readonly_fields = list_display
    ordering = ("id",)

    @base.display(description="Task")
    def task(self, row: Any) -> str:
        """The function that a worker calls."""
        return task_queue.task_of(row.payload) or "unreadable"

    @base.display(description="Registered", boolean=True)
    def registered(self, row: Any) -> bool:
        """Whether a worker will call it."""
        return task_queue.task_of(row.payload) in task_queue.REGISTERED


class FinishedTaskAdmin(base.ReadOnly):
    """Background tasks that ended. Arguments and results are pickles, which nothing here opens."""

    success = True
    list_display = ("name", "func", "started", "stopped", "cluster")
    search_fields = ("name", "func")
    ordering = ("-stopped",)
    fields: tuple[str, ...] = (*list_display, "attempt_count")
    readonly_fields: tuple[str, ...] = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Those of the page, without the columns of pickles."""
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.filter(success=self.success).defer("args", "kwargs", "result")


@admin.register(_taken_over("django_q.Success"))
class SucceededTaskAdmin(FinishedTaskAdmin):
    """Background tasks that succeeded; none is kept by default."""


@admin.register(_taken_over("django_q.Failure"))
class FailedTaskAdmin(FinishedTaskAdmin):
    """Background tasks that failed, with what they said."""

    success = False
    fields = readonly_fields = (*FinishedTaskAdmin.fields, "error")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """With the stored result as the text that it is in the table."""
        failed: QuerySet[Any] = super().get_queryset(request)
        rows: QuerySet[Any] = failed.annotate(stored=Cast("result", TextField()))
        return rows

    @base.display(description="Error")
    def error(self, task: Any) -> Any:
        """What the task said when it failed."""
        return base.fill(ERROR, task_queue.text_of(task.stored or ""))
