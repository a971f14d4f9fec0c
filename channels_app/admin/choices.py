"""Choices: filters with a drop-down list, drawn without a template for each choice."""

from datetime import timedelta
from html import escape
from typing import Any

from django.db.models import QuerySet
from django.forms.utils import flatatt
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from unfold.contrib.filters import admin
from unfold.contrib.filters.forms import DropdownForm
from unfold.widgets import UnfoldAdminSelectWidget

from channels_app import clock
from channels_app.rules import ids

FRAME = (
    '<div class="grow relative max-w-2xl"><select name="{}"{}>{}</select>'
    '<span class="material-symbols-outlined absolute group-[.primary]:text-white '
    "pointer-events-none mr-[12px] right-0 text-base-400 top-0 top-1/2 hover:text-base-700 "
    'dark:text-base-500 dark:hover:text-base-200 -translate-y-1/2">expand_more</span></div>'
)


class Select(UnfoldAdminSelectWidget):
    """One of a flat list, which may be long."""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        """What Unfold's templates make of it."""
        chosen = set(self.format_value(value))
        options = "".join(
            f'<option value="{escape(str(key))}"{" selected" if str(key) in chosen else ""}>'
            f"{escape(str(text))}</option>"
            for key, text in self.choices
        )
        attributes = flatatt(self.build_attrs(self.attrs, attrs))
        return format_html(FRAME, name, attributes, mark_safe(options))  # noqa: S308 - is escaped


class Form(DropdownForm):
    """One filter."""

    widget = Select(
        {
            "data-theme": "admin-autocomplete",
            "class": "unfold-admin-autocomplete admin-autocomplete",
        }
    )


class DropdownFilter(admin.DropdownFilter):
    """A choice of our own making."""

    form_class = Form


class ChoicesDropdownFilter(admin.ChoicesDropdownFilter):
    """A choice of a field's values."""

    form_class = Form


class RelatedDropdownFilter(admin.RelatedDropdownFilter):
    """A choice of the rows that a field points to."""

    form_class = Form


class Since(DropdownFilter):
    """Rows made lately: a range of the primary key, which carries the instant."""

    title = "time"
    parameter_name = "since"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Choices in hours."""
        return [("1", "Last hour"), ("24", "Last day"), ("168", "Last 7 days")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keys from the chosen instant on."""
        first = first_id(self.value())
        return queryset.filter(pk__gte=first) if first else queryset


def first_id(hours: str | None) -> int:
    """The smallest key of the last ``hours``; 0 for anything that is no number of hours."""
    if not hours or not hours.isdecimal() or len(hours) > 6:
        return 0
    start = clock.now() - timedelta(hours=int(hours))
    return ids.first_id_at(int(start.timestamp() * 1000))
