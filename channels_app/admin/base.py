"""Define the base of all admin pages: read-only rows, lists without scans, dialogs, row actions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from html import escape
from typing import Any, TypeVar

from django import forms
from django.contrib import messages
from django.contrib.admin import ShowFacets
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString, mark_safe
from unfold import decorators, paginator
from unfold.admin import ModelAdmin, checkbox
from unfold.enums import ActionVariant
from unfold.forms import ActionForm, BaseDialogForm
from unfold.views import ChangeList
from unfold.widgets import UnfoldAdminTextInputWidget

from channels_app.access.principal import Principal
from channels_app.core import ids
from channels_app.core.errors import BrokerError
from channels_app.registry.consumers import MAX_REASON_LENGTH

M = TypeVar("M", bound=Model)
F = TypeVar("F", bound=Callable[..., Any])

display: Callable[..., Callable[[F], F]] = decorators.display
action: Callable[..., Callable[[F], F]] = decorators.action

WINDOW = 10_000
"""Rows that a list pages through, newest first: a later page would read all rows before it."""
NONE = "-"
CHECKBOX = checkbox.render(ACTION_CHECKBOX_NAME, "{}")
TONES = ("good", "bad", "busy", "wait", "calm")
Method = Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]


class WithPageContext(ModelAdmin):
    """A page with templates beyond Django's, and the context for them."""

    def row_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Context for the page of this row."""
        return {}

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """Context for the list."""
        return {}

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Add the context of the row, if it exists and may be viewed."""
        row = self.get_object(request, object_id)
        may = row is not None and self.has_view_permission(request, row)
        more = self.row_context(request, row) if may else {}
        if request.method != "POST":  # a form changes its row, so it has to be read again
            request.looked_at = row  # type: ignore[attr-defined]  # an attribute of ours
        page: HttpResponse = super().change_view(
            request, object_id, form_url, more | (extra_context or {})
        )
        return page

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """The row; reuses the one that was read for the context."""
        row = getattr(request, "looked_at", None)
        if row is None:
            return super().get_object(request, object_id, from_field)
        request.looked_at = None  # type: ignore[attr-defined]  # an attribute of ours
        return row

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Add the context of the list."""
        more = self.list_context(request)
        page: HttpResponse = super().changelist_view(request, more | (extra_context or {}))
        return page


class IndexOrdered(ChangeList):
    """A list without sorting and joins, whatever its columns and the URL request."""

    def apply_select_related(self, queryset: QuerySet[M]) -> QuerySet[M]:
        """No joins: the database could start with the small table and then sort this one."""
        return queryset

    def get_ordering_field_columns(self) -> dict[int, str]:
        """No columns can be sorted."""
        return {}

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[str]:
        """The page's own order; ``sortable_by`` only hides the links."""
        return list(self.model_admin.get_ordering(request))


class InfinitePaginator(paginator.InfinitePaginator):
    """Pages without a COUNT(*), up to the number of rows beyond which a filter is the better way.

    The page header recognizes the class by its name, and then shows no number of results.
    """

    count = WINDOW


class AdminPage(ModelAdmin):
    """Base of all pages: no counts of filters, a link back, and no bulk deletion of Django's."""

    show_facets = ShowFacets.NEVER
    list_filter_sheet = True
    list_filter_submit = True
    list_per_page = 25  # rendering the cells takes longer than all queries of the page
    empty_value_display = NONE
    warn_unsaved_form = True
    id_prefix = ""
    """Prefix of the row's public id, by which the page can also be opened; '' for none."""

    @display(description="Select")
    def action_checkbox(self, obj: Model) -> SafeString:
        """The checkbox that selects a row for an action; Unfold's, rendered once for all rows."""
        return fill(CHECKBOX, str(obj.pk))

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """The page of a row; a public id redirects to the primary key."""
        number = (
            ids.from_public(self.id_prefix, object_id) if self.id_prefix and object_id else None
        )
        if number is not None:
            return redirect(self.page_of(number))
        page: HttpResponse = super().changeform_view(request, object_id, *args, **kwargs)
        return page

    def page_of(self, key: Any) -> str:
        """URL of a row's page."""
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_change", args=[key])

    def audit_target(self, obj: Any) -> str:
        """The row's name in the audit log; '' if it is not audited."""
        return ""

    @action(description="Audit log", icon="history", permissions=["view"])
    def see_audit(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the audit entries of this row."""
        obj = self.get_object(request, object_id)
        target = urlencode({"q": self.audit_target(obj) if obj else ""})
        return redirect(f"{reverse('admin:channels_app_auditentry_changelist')}?{target}")

    def has_operate_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Whether the user may act on rows, which needs the change permission."""
        opts = self.opts
        return bool(request.user.has_perm(f"{opts.app_label}.change_{opts.model_name}"))


class ReadOnly(AdminPage):
    """A page of rows that only the broker writes."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never."""
        return False


class BigList(ReadOnly):
    """A table with millions of rows, newest first, read only in index order."""

    show_full_result_count = False
    paginator = InfinitePaginator
    list_disable_select_all = True
    ordering = ("-pk",)
    sortable_by = ()
    list_fetched: tuple[str, ...] = ()
    """Relations of the rows, fetched after the rows of the page are known."""

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[IndexOrdered]:
        """Use a changelist without sorting and joins."""
        return IndexOrdered

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Prefetch the relations of the rows."""
        rows: QuerySet[Any] = super().get_queryset(request).prefetch_related(*self.list_fetched)
        return rows


def newest(queryset: QuerySet[M]) -> QuerySet[M]:
    """The newest ``WINDOW`` rows of a query, so that a further filter scans no more."""
    keys = queryset.order_by("-pk").values_list("pk", flat=True)
    last = next(iter(keys[WINDOW - 1 : WINDOW]), None)
    return queryset if last is None else queryset.filter(pk__gte=last)


class ReasonForm(BaseDialogForm):
    """The reason for an action, for the audit log."""

    reason = forms.CharField(
        max_length=MAX_REASON_LENGTH,
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="For the audit log.",
    )


class ReasonActionForm(ActionForm):
    """The reason for an action on the selected rows."""

    reason = forms.CharField(
        label="",
        max_length=MAX_REASON_LENGTH,
        required=False,
        widget=UnfoldAdminTextInputWidget(
            attrs={"aria-label": "Reason", "placeholder": "Reason", "x-show": "action"}
        ),
    )


def dialog(title: str, text: str, button: str, form: type[BaseDialogForm] = ReasonForm) -> Any:
    """Options of an action with a confirmation dialog.

    Only its button posts; a link changes nothing.
    """
    return {"title": title, "description": text, "form_class": form, "form_submit_text": button}


def leave_dialog(url: str) -> HttpResponse:
    """Close a dialog by going to a page."""
    return HttpResponse(headers={"HX-Redirect": url})


def principal(request: HttpRequest, reason: str = "") -> Principal:
    """The user, who is an operator; Django's permissions say which pages and actions there are."""
    return Principal(f"user:{request.user.get_username()}", reason, is_operator=True)


@contextmanager
def telling(request: HttpRequest, done: str) -> Iterator[None]:
    """Show a message: that the action succeeded, or why a service refused it."""
    try:
        yield
    except BrokerError as refused:
        messages.error(request, refused.detail)
    else:
        messages.success(request, done)


def require(allowed: bool) -> None:
    """Raise PermissionDenied unless allowed."""
    if not allowed:
        raise PermissionDenied


def fill(template: str, *texts: str) -> SafeString:
    """A fast format_html for plain texts, since lists use it in every cell."""
    return mark_safe(template.format(*map(escape, texts)))  # noqa: S308 - the texts are escaped


def label(text: str, tone: str = "calm") -> SafeString:
    """A state as a coloured word; ``tone`` is one of TONES."""
    return fill('<span class="hs-label hs-{}">{}</span>', tone, text)


def instant(value: datetime | None, *, exact: bool = True) -> SafeString | str:
    """An instant in UTC in milliseconds, or in seconds for narrow columns."""
    if value is None:
        return NONE
    text = value.isoformat(" ", "milliseconds" if exact else "seconds").removesuffix("+00:00")
    return fill('<time class="hs-time" datetime="{}">{}</time>', value.isoformat(), text)


def mono(text: str) -> SafeString | str:
    """An id or an address in a monospaced font."""
    return fill('<span class="hs-mono">{}</span>', text) if text else NONE


def public_id(text: str) -> SafeString:
    """A public id on one line."""
    return fill('<span class="hs-mono hs-id">{}</span>', text)


def linked(url: str, text: str) -> SafeString:
    """A link inside a row."""
    return fill('<a class="hs-link hs-id" href="{}">{}</a>', url, text)


class ResourceAdmin(AdminPage):
    """A page whose form writes through a service (forms.py); generated secrets are shown once."""

    identity: tuple[str, ...] = ()
    """Fields that identify the row: set at creation, then read-only."""

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Make the identifying fields read-only after creation."""
        fixed = self.identity if obj else ()
        return (*fixed, *super().get_readonly_fields(request, obj))

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """False by default: history refers to these rows."""
        return False

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show the form again, with everything that was typed, if the step refused it."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except BrokerError as refused:
            request.refused = refused  # type: ignore[attr-defined]  # an attribute of ours
        return super().changeform_view(request, *args, **kwargs)

    def get_form(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """The form class, with the error of the step if it refused."""
        form = super().get_form(request, *args, **kwargs)
        form.refused = getattr(request, "refused", None)
        return form

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Write through the step instead of Django's save."""
        done = form.write(principal(request))
        obj.pk = done.row.pk
        obj.refresh_from_db()
        show_once(request, done.secrets)

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: Any = None) -> Any:
        """Show the secrets of a new row, if it has any; otherwise go to the list as usual."""
        secrets = getattr(request, "shown_once", ())
        if not secrets:
            return super().response_add(request, obj, post_url_continue)
        context = self.admin_site.each_context(request) | {
            "title": f"{self.opts.verbose_name} {obj}",
            "opts": self.opts,
            "secrets": secrets,
            "next_url": self.page_of(obj.pk),
        }
        return TemplateResponse(request, "channels_app/shown_once.html", context)


def show_once(request: HttpRequest, secrets: tuple[str, ...]) -> None:
    """Keep secrets for the response to this request only: in no session, cookie or message."""
    request.shown_once = secrets  # type: ignore[attr-defined]  # an attribute of ours


def secret_dialog(request: HttpRequest, title: str, secrets: tuple[str, ...]) -> HttpResponse:
    """Replace a dialog by the new secrets. Responses of the admin are never cached."""
    context = {"title": title, "secrets": secrets}
    response = TemplateResponse(request, "channels_app/secret_dialog.html", context)
    for name, value in (("Retarget", "#dialog"), ("Reselect", "#dialog"), ("Reswap", "outerHTML")):
        response[f"HX-{name}"] = value
    return response


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
        step: Callable[[Principal], object],
        success_message: str,
    ) -> HttpResponse:
        """Run the step as this user for the dialog's reason; then show the row if it exists."""
        with telling(request, success_message):
            step(principal(request, form.cleaned_data["reason"]))
        if self.model._default_manager.filter(pk=object_id).exists():
            return leave_dialog(self.page_of(object_id))
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        return leave_dialog(reverse(name))
