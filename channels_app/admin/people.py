"""Define the admin pages of teams, memberships, the audit log and the ConfigVersion."""

import json
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from unfold.admin import TabularInline

from channels_app.admin import base, granting
from channels_app.admin.base import WithPageContext, display
from channels_app.admin.filters import RelatedDropdownFilter
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


class Audited(base.Page):
    """A page whose changes are written to the audit log."""

    noun = ""

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Save, and log what changed."""
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            AuditEntry.record(
                base.actor(request),
                f"{self.noun}.{'update' if change else 'create'}",
                self.audit_target(obj),
                team_id=self.team_id_of(obj),
                before={
                    name: audit_value(name, form.initial.get(name)) for name in form.changed_data
                }
                if change
                else None,
                after={
                    name: audit_value(name, form.cleaned_data.get(name))
                    for name in form.changed_data
                },
            )

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete, and log it."""
        with transaction.atomic():
            target, team_id = self.audit_target(obj), self.team_id_of(obj)
            before = self.described(request, obj)
            super().delete_model(request, obj)
            AuditEntry.record(
                base.actor(request),
                f"{self.noun}.delete",
                target,
                team_id=team_id,
                before=before,
            )

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Delete one by one, so that each has an audit entry."""
        for obj in queryset:
            self.delete_model(request, obj)

    def described(self, request: HttpRequest, obj: Model) -> dict[str, Any]:
        """The values of the row's own fields on its page, for the audit log."""
        shown = flatten_fieldsets(self.get_fieldsets(request, obj))
        several = {row.name for row in obj._meta.many_to_many}
        known = {row.name for row in obj._meta.concrete_fields} | several
        return {
            name: audit_value(
                name, getattr(obj, name).all() if name in several else getattr(obj, name)
            )
            for name in shown
            if name in known
        }

    def title_of(self, obj: Model) -> str:
        """The row's name, which follows the noun."""
        return str(obj)

    def team_id_of(self, obj: Any) -> int | None:
        """Id of the team that the row concerns, if any."""
        return obj.pk if isinstance(obj, Team) else getattr(obj, "team_id", None)

    def audit_target(self, obj: Any) -> str:
        """Noun and name."""
        return f"{self.noun}:{self.title_of(obj)}"


class Members(TabularInline):
    """Members of a team; the page of memberships changes them, where each change is audited."""

    model = Membership
    fields = ("user", "role")
    readonly_fields = fields
    extra = 0
    can_delete = False
    hide_title = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Not on this page."""
        return False


@admin.register(Team)
class TeamAdmin(WithPageContext, Audited):
    """Teams."""

    noun = "team"
    list_display = ("slug", "name", "member_count")
    search_fields = ("slug", "name")
    ordering = ("slug",)
    fields = ("slug", "name", ("max_waiting_messages", "max_waiting_bytes"))
    inlines = (Members,)
    actions_detail = ("see_audit",)
    change_form_outer_before_template = "channels_app/quota.html"

    def row_context(self, request: HttpRequest, row: Team) -> dict[str, Any]:
        """Usage of the team's quota."""
        used = QuotaUsage.of(QuotaUsage.Scope.TEAM, row.pk)
        return {"bars": row.quota(conf().team_quota).bars(used)}

    @display(description="Members")
    def member_count(self, team: Team) -> int:
        """How many people."""
        return team.memberships.count()


@admin.register(Membership)
class MembershipAdmin(Audited):
    """Roles of people in teams."""

    noun = "membership"
    list_display = ("user", "team", "role")
    list_select_related = ("user", "team")
    list_filter = ("role", ("team", RelatedDropdownFilter))
    search_fields = ("user__username", "team__slug")
    autocomplete_fields = ("user", "team")
    ordering = ("team__slug", "user__username")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """False for a role with more rights than the user has."""
        allowed = super().has_change_permission(request, obj)
        return allowed and (obj is None or obj.role in granting.team_roles(request.user))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """As for changes: removing a role could put its account into reach of more people."""
        allowed = super().has_delete_permission(request, obj)
        return allowed and (obj is None or obj.role in granting.team_roles(request.user))

    def formfield_for_choice_field(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer only roles whose rights the user has."""
        if db_field.name == "role":
            kwargs["choices"] = [
                (role, label)
                for role, label in db_field.choices
                if role in granting.team_roles(request.user)
            ]
        return super().formfield_for_choice_field(db_field, request, **kwargs)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Person and team cannot change, since each team's audit log shows its own members."""
        return ("user", "team") if obj else ()

    def title_of(self, obj: Model) -> str:
        """Team and person."""
        assert isinstance(obj, Membership)
        return f"{obj.team.slug}/{obj.user.get_username()}"


@admin.register(Invitation)
class InvitationAdmin(base.ReadOnly):
    """Invitation links, created and revoked by the teams; the links themselves are not stored."""

    list_display = ("team", "role", "email", "invited_by", "made", "ends", "used")
    list_select_related = ("team",)
    list_filter = (("team", RelatedDropdownFilter),)
    search_fields = ("email", "team__slug")
    ordering = ("-id",)
    fields = readonly_fields = (*list_display, "taken_back")

    @display(description="Made")
    def made(self, invitation: Invitation) -> str:
        """When it was created."""
        return base.instant(invitation.created_at)

    @display(description="Ends")
    def ends(self, invitation: Invitation) -> str:
        """When it expires."""
        return base.instant(invitation.expires_at)

    @display(description="Used")
    def used(self, invitation: Invitation) -> str:
        """When somebody used it to join."""
        return base.instant(invitation.accepted_at)

    @display(description="Revoked")
    def taken_back(self, invitation: Invitation) -> str:
        """When it was revoked."""
        return base.instant(invitation.revoked_at)


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
        found = queryset.filter(target__gte=term, target__lt=f"{term}\U0010ffff")
        return found.order_by("-target", "-id"), False  # newest first within each target

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


def _shown(value: Any) -> str:
    return base.NONE if value is None else base.mono(json.dumps(value, ensure_ascii=False))
