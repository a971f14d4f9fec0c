"""Define admin pages of users and of django-q2's tables, in the console's style."""

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

from broker_site import system, upcoming, usage  # noqa: F401 - registers their pages
from channels_app.admin import base, granting
from channels_app.admin.people import Audited
from channels_app.core import access
from channels_app.models import AuditEntry
from delivery.processes import task_queue

admin.site.unregister(User)
admin.site.unregister(Group)


class RolesExplained(base.Page):
    """A list with an explanation of the standard roles above it."""

    list_before_template = "admin/roles_top.html"

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """Add the standard roles to the context."""
        return super().changelist_view(request, {"roles": access.ROLES} | (extra_context or {}))


@admin.register(User)
# Generic to the type checker only; at run time it takes no parameter.
class UserAdmin(granting.GrantsPermissions, RolesExplained, DjangoUserAdmin, Audited):  # type: ignore[type-arg]
    """People who may use the console."""

    noun = "user"
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    # Two lists side by side do not fit, so use a field with a search.
    filter_horizontal = ()
    autocomplete_fields = ("groups",)

    def owner_of(self, obj: Any) -> User:
        """The row itself."""
        person: User = obj
        return person

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Only superusers may set ``is_superuser``."""
        fixed = () if getattr(request.user, "is_superuser", False) else ("is_superuser",)
        return (*super().get_readonly_fields(request, obj), *fixed)

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer only groups and permissions that the user may grant."""
        if db_field.name == "groups":
            kwargs["queryset"] = granting.groups(request.user)
        elif db_field.name == "user_permissions":
            kwargs["queryset"] = granting.permissions(request.user)
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    def user_change_password(
        self, request: HttpRequest, id: str, form_url: str = ""
    ) -> HttpResponse:
        """Django's page, with an entry in the audit log for a changed password."""
        answer = super().user_change_password(request, id, form_url)
        if request.method == "POST" and answer.status_code == 302:
            target = self.audit_target(self.get_object(request, id))
            AuditEntry.record(base.actor(request), "user.set_password", target)
        return answer


@admin.register(Group)
# The stubs of both bases disagree on a field; ours includes Django's.
class GroupAdmin(RolesExplained, DjangoGroupAdmin, Audited):  # type: ignore[misc]
    """Groups of users. The standard roles are the same everywhere (core/access.py)."""

    noun = "group"
    filter_horizontal = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        """Prefetch what the names of permissions consist of."""
        rows: QuerySet[Group] = super().get_queryset(request)
        return rows.prefetch_related("permissions__content_type")

    def formfield_for_manytomany(
        self, db_field: Any, request: HttpRequest | None = None, **kwargs: Any
    ) -> Any:
        """Offer only permissions that the user has."""
        if db_field.name == "permissions" and request is not None:
            kwargs["queryset"] = granting.permissions(request.user)
        return super().formfield_for_manytomany(db_field, request, **kwargs)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """False for a standard role, and for a group with more rights than the user has."""
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
    """Mixin for allauth's page of e-mail addresses: audited, in the console's style."""

    noun = "email"

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer only people without more rights: an address suffices to reset the password."""
        if db_field.name == "user":
            kwargs["queryset"] = granting.people(request.user)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def get_actions(self, request: HttpRequest) -> Any:
        """No actions without the right to change rows, since the actions do not check it."""
        return super().get_actions(request) if self.has_operate_permission(request) else {}

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        """Run the action, and audit each selected row; a deletion writes its own entries."""
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
    """Unregister another app's admin page of a model, and return the model.

    By name, since only delivery.runtime imports django-q2, and only the portal's accounts allauth.
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
    """Second factors: can be removed for users who lost theirs, are never shown."""

    noun = "second_factor"
    list_display = ("user", "type", "created_at", "last_used_at")
    list_select_related = ("user",)
    search_fields = ("user__username", "user__email")
    fields = readonly_fields = list_display

    def title_of(self, obj: Any) -> str:
        """User and type."""
        return f"{obj.user}/{obj.type}"

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Only users add their own."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Only users change their own."""
        return False


ERROR = '<pre class="hs-pre">{}</pre>'


# -- Background tasks: django-q2's own pages unpickle data from its tables, these do not ---------


@admin.register(_taken_over("django_q.Schedule"))
class ScheduleAdmin(base.ReadOnly):
    """Schedules of background tasks."""

    list_display = ("name", "func", "registered", "minutes", "next_run", "active")
    fields = readonly_fields = (*list_display, "schedule_type", "cluster")
    ordering = ("name",)

    @base.display(description="Registered", boolean=True)
    def registered(self, schedule: Any) -> bool:
        """Whether a worker would call the function."""
        return schedule.func in task_queue.REGISTERED

    @base.display(description="Active", boolean=True)
    def active(self, schedule: Any) -> bool:
        """Whether it still starts its task."""
        return bool(schedule.repeats != 0)


@admin.register(_taken_over("django_q.OrmQ"))
class QueuedTaskAdmin(base.ReadOnly):
    """Background tasks that are queued or running."""

    list_display = ("id", "task", "registered", "key", "lock")
    fields = readonly_fields = list_display
    ordering = ("id",)

    @base.display(description="Task")
    def task(self, row: Any) -> str:
        """The function that a worker calls."""
        return task_queue.task_of(row.payload) or "unreadable"

    @base.display(description="Registered", boolean=True)
    def registered(self, row: Any) -> bool:
        """Whether a worker will call the function."""
        return task_queue.task_of(row.payload) in task_queue.REGISTERED


class FinishedTaskAdmin(base.ReadOnly):
    """Finished background tasks. Arguments and results are pickles, which are not loaded here."""

    success = True
    list_display = ("name", "func", "started", "stopped", "cluster")
    search_fields = ("name", "func")
    ordering = ("-stopped",)
    fields: tuple[str, ...] = (*list_display, "attempt_count")
    readonly_fields: tuple[str, ...] = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Rows of this page, without the columns of pickles."""
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.filter(success=self.success).defer("args", "kwargs", "result")


@admin.register(_taken_over("django_q.Success"))
class SucceededTaskAdmin(FinishedTaskAdmin):
    """Background tasks that succeeded; by default none are kept."""


@admin.register(_taken_over("django_q.Failure"))
class FailedTaskAdmin(FinishedTaskAdmin):
    """Background tasks that failed, with their errors."""

    success = False
    fields = readonly_fields = (*FinishedTaskAdmin.fields, "error")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Add the stored result as text."""
        failed: QuerySet[Any] = super().get_queryset(request)
        rows: QuerySet[Any] = failed.annotate(stored=Cast("result", TextField()))
        return rows

    @base.display(description="Error")
    def error(self, task: Any) -> Any:
        """The error of the task."""
        return base.fill(ERROR, task_queue.text_of(task.stored or ""))
