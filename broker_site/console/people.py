"""Define admin pages of users, their addresses and second factors, in the console's style."""

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin as DjangoGroupAdmin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from channels_app.admin import base, granting
from channels_app.admin.people import Audited, AuditedInline, CheckedFormSet, Teams
from channels_app.core import access
from channels_app.models import AuditEntry

SEE_ADDRESSES = "account.view_emailaddress"

admin.site.unregister(User)
admin.site.unregister(Group)


class RolesExplained(base.AdminPage):
    """A list with an explanation of the standard roles above it."""

    list_before_template = "admin/roles_top.html"

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """Add the standard roles to the context."""
        return super().changelist_view(request, {"roles": access.ROLES} | (extra_context or {}))


class AddressFormSet(CheckedFormSet):
    """Addresses of a user, of which one is the primary one."""

    def clean(self) -> None:
        """Count them, since not every database checks it."""
        super().clean()
        kept = [form for form in self.forms if not self._should_delete_form(form)]
        if sum(bool(form.cleaned_data.get("primary")) for form in kept if form.is_valid()) > 1:
            raise ValidationError("Only one address can be the primary one.")


def _taken_over(name: str) -> Any:
    """Unregister another app's admin page of a model, and return the model.

    By name, since only delivery.runtime imports django-q2, and only the portal's accounts allauth.
    """
    model = apps.get_model(name)
    admin.site.unregister(model)
    return model


# django-q2's own pages unpickle data from its tables; the system page shows them without.
for _name in ("Schedule", "OrmQ", "Success", "Failure"):
    _taken_over(f"django_q.{_name}")


class Addresses(AuditedInline):
    """A user's e-mail addresses; an address suffices to reset the password."""

    noun = "email"
    model = _taken_over("account.EmailAddress")
    formset = AddressFormSet
    fields = ("email", "verified", "primary")


class SecondFactors(AuditedInline):
    """Second factors: can be removed for users who lost theirs, are never shown."""

    noun = "second_factor"
    model = _taken_over("mfa.Authenticator")
    verbose_name_plural = "second factors"
    fields = readonly_fields = ("type", "created_at", "last_used_at")

    def title_of(self, obj: Any) -> str:
        """User and type."""
        return f"{obj.user}/{obj.type}"

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Only users add their own."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Only users change their own."""
        return False


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
    inlines = (Addresses, SecondFactors, Teams)

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        """None for a new user."""
        return self.inlines if obj else ()

    def get_search_fields(self, request: HttpRequest) -> Any:
        """Find a user also by addresses, for those who may see them."""
        more = ["emailaddress__email"] if request.user.has_perm(SEE_ADDRESSES) else []
        return (*super().get_search_fields(request), *more)

    def get_list_filter(self, request: HttpRequest) -> Any:
        """Filter also by addresses, for those who may see them."""
        more = ["emailaddress__verified"] if request.user.has_perm(SEE_ADDRESSES) else []
        return (*super().get_list_filter(request), *more)

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
            AuditEntry.record(base.principal(request).actor, "user.set_password", target)
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
