"""Define the admin pages of teams, with their members and invitations, and of the audit log."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.auth import get_permission_codename
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from unfold.admin import TabularInline
from unfold.forms import PaginationInlineFormSet

from channels_app.admin import base, granting
from channels_app.admin.base import WithPageContext, display
from channels_app.conf import conf
from channels_app.models import (
    AuditEntry,
    Invitation,
    Membership,
    QuotaUsage,
    Team,
)

SECRET = ("password", "payload", "secret", "token")
"""Fields whose names contain one of these words are not logged; a task's payload may hold
anything."""
MAX_VALUE_LENGTH = 500


class Logged:
    """Names rows and their changes in the audit log."""

    noun = ""

    def title_of(self, obj: Model) -> str:
        """The row's name, which follows the noun."""
        return str(obj)

    def team_id_of(self, obj: Any) -> int | None:
        """Id of the team that the row concerns, if any."""
        return obj.pk if isinstance(obj, Team) else getattr(obj, "team_id", None)

    def audit_target(self, obj: Any) -> str:
        """Noun and name."""
        return f"{self.noun}:{self.title_of(obj)}"

    def log(self, request: HttpRequest, action: str, obj: Any, **values: Any) -> None:
        """Write an entry."""
        AuditEntry.record(
            base.principal(request).actor,
            f"{self.noun}.{action}",
            self.audit_target(obj),
            team_id=self.team_id_of(obj),
            **values,
        )

    def log_saved(self, request: HttpRequest, form: Any, *, change: bool) -> None:
        """Write what a form created or changed."""
        before = {name: audit_value(name, form.initial.get(name)) for name in form.changed_data}
        after = {name: audit_value(name, form.cleaned_data.get(name)) for name in form.changed_data}
        if after or not change:
            self.log(
                request,
                "update" if change else "create",
                form.instance,
                before=before if change else None,
                after=after,
            )

    def described(self, obj: Model, shown: Iterable[str]) -> dict[str, Any]:
        """The values of the row's own fields on its page, for the audit log."""
        several = {row.name for row in obj._meta.many_to_many}
        own = {row.name for row in obj._meta.concrete_fields} | several
        return {
            name: audit_value(
                name, getattr(obj, name).all() if name in several else getattr(obj, name)
            )
            for name in shown
            if name in own
        }


class CheckedFormSet(PaginationInlineFormSet):
    """Also checks constraints that include the key of the row that an inline belongs to."""

    def add_fields(self, form: Any, index: int | None) -> None:
        """Name each field for screen readers: its label is only the head of a column."""
        super().add_fields(form, index)
        for field in form.fields.values():
            if field.label:
                field.widget.attrs.setdefault("aria-label", str(field.label))

    def clean(self) -> None:
        """Refuse a row that breaks one, such as a second membership of a person."""
        super().clean()
        for form in self.forms:
            if form.has_changed() and form.is_valid() and not self._should_delete_form(form):
                try:
                    form.instance.validate_constraints()
                except ValidationError as refused:
                    form.add_error(None, refused)


class AuditedInline(Logged, TabularInline):
    """Rows that change on the page of the row that they belong to."""

    formset = CheckedFormSet
    extra = 0
    hide_title = True
    fields: tuple[str, ...]

    def get_formset(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        """The formset, with this inline for the audit log."""
        formset = super().get_formset(request, obj, **kwargs)
        formset.inline = self
        return formset


class Audited(Logged, base.AdminPage):
    """A page whose changes, and those of its inlines, are written to the audit log."""

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save, and log what changed."""
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            self.log_saved(request, form, change=change)

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:
        """Save an inline, and log what changed."""
        with transaction.atomic():
            super().save_formset(request, form, formset, change)
            gone = formset.deleted_forms
            for row in formset:
                is_known = row in formset.initial_forms
                if row not in gone and row.has_changed():
                    formset.inline.log_saved(request, row, change=is_known)
                elif row in gone and is_known:
                    before = formset.inline.described(row.instance, formset.inline.fields)
                    formset.inline.log(request, "delete", row.instance, before=before)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Ask also for the permission to delete rows of the inlines, which go with their row."""
        shown, counts, needed, protected = super().get_deleted_objects(objs, request)
        for opts in (inline.model._meta for inline in self.inlines):
            permission = f"{opts.app_label}.{get_permission_codename('delete', opts)}"
            if opts.verbose_name_plural in counts and not request.user.has_perm(permission):
                needed.add(opts.verbose_name)
        return shown, counts, needed, protected

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete, and log it."""
        shown = flatten_fieldsets(self.get_fieldsets(request, obj))
        with transaction.atomic():
            self.log(request, "delete", obj, before=self.described(obj, shown))
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Delete one by one, so that each has an audit entry."""
        for obj in queryset:
            self.delete_model(request, obj)


class MemberForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """A member: the person is fixed, and so is a role with more rights than the user has."""

    may_give: ClassVar[Sequence[str]] = ()
    """Roles whose rights the user has."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        role = self.instance.role if self.instance.pk else ""
        self.is_fixed = bool(role) and role not in self.may_give
        if role and "user" in self.fields:
            # Each team's audit log shows its own members.
            self.fields["user"].disabled = True
        if "role" in self.fields:
            may = [role] if self.is_fixed else self.may_give
            choices = [choice for choice in Membership.Role.choices if choice[0] in may]
            self.fields["role"].choices = choices  # type: ignore[attr-defined]  # a choice field
            self.fields["role"].disabled = self.is_fixed


class MemberFormSet(CheckedFormSet):
    """Members of a team; none with more rights than the user has can be removed."""

    def add_fields(self, form: Any, index: int | None) -> None:
        """Fix the box that removes such a member."""
        super().add_fields(form, index)
        if "DELETE" in form.fields:
            form.fields["DELETE"].disabled = form.is_fixed


class Members(AuditedInline):
    """Members of a team, with their roles."""

    noun = "membership"
    model = Membership
    form = MemberForm
    formset = MemberFormSet
    fields = ("user", "role")
    autocomplete_fields = ("user",)

    def get_formset(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        """The formset, with the roles that the user may give."""
        formset = super().get_formset(request, obj, **kwargs)
        formset.form.may_give = granting.team_roles(request.user)
        return formset

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read the people in the same query."""
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.select_related("user", "team")

    def title_of(self, obj: Model) -> str:
        """Team and person."""
        assert isinstance(obj, Membership)
        return f"{obj.team.slug}/{obj.user.get_username()}"


class ReadOnlyInline(TabularInline):
    """Rows that are only shown."""

    extra = 0
    can_delete = False
    hide_title = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never."""
        return False


class Teams(ReadOnlyInline):
    """The teams of a user; a team's page changes its members."""

    model = Membership
    verbose_name_plural = "teams"
    fields = readonly_fields = ("team", "role")


class Invitations(ReadOnlyInline):
    """Invitation links, created and revoked in the portal; the links themselves are not stored."""

    model = Invitation
    fields = readonly_fields = (
        *("role", "email", "invited_by", "created_at", "expires_at", "accepted_at", "revoked_at"),
    )
    ordering = ("-id",)
    per_page = 10


@admin.register(Team)
class TeamAdmin(WithPageContext, Audited):
    """Teams."""

    noun = "team"
    list_display = ("slug", "name", "member_count")
    search_fields = ("slug", "name")
    search_help_text = "slug, name, member or invited address"
    ordering = ("slug",)
    fields = ("slug", "name", ("max_waiting_messages", "max_waiting_bytes"))
    inlines = (Members, Invitations)
    actions_detail = ("see_audit",)
    change_form_outer_before_template = "channels_app/quota.html"

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """False while a member has more rights than the user, as for removing the member."""
        may = super().has_delete_permission(request, obj)
        roles = granting.team_roles(request.user)
        return may and (obj is None or not obj.memberships.exclude(role__in=roles).exists())

    def get_search_fields(self, request: HttpRequest) -> Sequence[str]:
        """Find a team also by the people that the user may see."""
        more = {"membership": "memberships__user__username", "invitation": "invitations__email"}
        return (
            *super().get_search_fields(request),
            *(path for name, path in more.items() if _may_view(request, name)),
        )

    def row_context(self, request: HttpRequest, row: Team) -> dict[str, Any]:
        """Usage of the team's quota."""
        used = QuotaUsage.of(QuotaUsage.Scope.TEAM, row.pk)
        return {"bars": row.quota(conf().team_quota).bars(used)}

    @display(description="Members")
    def member_count(self, team: Team) -> int:
        """How many people."""
        return team.memberships.count()


@admin.register(AuditEntry)
class AuditEntryAdmin(base.BigList):
    """Who did what to which object, when and why."""

    list_display = ("time", "actor", "action", "target", "reason")
    list_display_links = ("time", "action")
    search_fields = ("target",)
    search_help_text = "beginning of the target, such as consumer:orders/"
    fields = ("time", "actor", "source", "action", "target", "reason", "was", "became")
    readonly_fields = fields

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditEntry], search_term: str
    ) -> tuple[QuerySet[AuditEntry], bool]:
        """Search by the beginning of the target, which has an index."""
        term = search_term.strip()
        if not term:
            return queryset, False
        # A range instead of LIKE, which ignores case on SQLite and then cannot use the index.
        matches = queryset.filter(target__gte=term, target__lt=f"{term}\U0010ffff")
        return matches.order_by("-target", "-id"), False  # newest first within each target

    @display(description="Time")
    def time(self, entry: AuditEntry) -> str:
        """When."""
        return base.instant(entry.at)

    @display(description="Before")
    def was(self, entry: AuditEntry) -> str:
        """Values before the change."""
        return _shown(entry.before)

    @display(description="After")
    def became(self, entry: AuditEntry) -> str:
        """Values after the change."""
        return _shown(entry.after)


def audit_value(name: str, value: Any) -> Any:
    """A value for the audit log: no secrets, rows by name, long text shortened."""
    if any(word in name for word in SECRET):
        return "(not kept)"
    if isinstance(value, QuerySet | list | tuple):
        return sorted(str(row) for row in value)
    return value if value is None or isinstance(value, bool) else str(value)[:MAX_VALUE_LENGTH]


def _may_view(request: HttpRequest, model: str) -> bool:
    return bool(request.user.has_perm(f"channels_app.view_{model}"))


def _shown(value: Any) -> str:
    return base.NONE if value is None else base.mono(json.dumps(value, ensure_ascii=False))
