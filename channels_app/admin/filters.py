"""Define filters with a drop-down list that is rendered without a template per choice."""

from collections.abc import Iterable
from datetime import timedelta
from html import escape
from typing import Any

from django.db.models import QuerySet
from django.forms.utils import flatatt
from django.http import HttpRequest
from django.utils.safestring import SafeString, mark_safe
from unfold.contrib.filters import admin
from unfold.contrib.filters.forms import DropdownForm
from unfold.widgets import UnfoldAdminSelectWidget

from channels_app.core import ids
from channels_app.database import clock

TEMPLATE = "channels_app/choice.html"
LOOK = "unfold-admin-autocomplete admin-autocomplete"
ATTRIBUTES = flatatt(
    UnfoldAdminSelectWidget({"data-theme": "admin-autocomplete", "class": LOOK}).attrs
)
FIELD = (
    '<div class="flex flex-col group mb-4"><div class="flex flex-col gap-2">'
    '<label for="id_{0}" class="block font-semibold text-important">{1}</label>'
    '<div class="grow relative max-w-2xl"><select name="{0}" id="id_{0}"{2}>{3}</select>'
    '<span class="material-symbols-outlined absolute group-[.primary]:text-white '
    "pointer-events-none mr-[12px] right-0 text-base-400 top-0 top-1/2 hover:text-base-700 "
    'dark:text-base-500 dark:hover:text-base-200 -translate-y-1/2">expand_more</span></div>'
    "</div></div>"
)


class Form:
    """One filter. Replaces Unfold's form, field and templates by a template of its own."""

    Media = DropdownForm.Media

    def __init__(
        self,
        name: str,
        label: str,
        choices: Iterable[tuple[Any, Any]],
        data: dict[str, Any],
        multiple: bool = False,
    ) -> None:
        self.name, self.label, self.choices = name, label, choices
        self.chosen = str(data.get(name) or "")

    def __str__(self) -> SafeString:
        """The HTML of the drop-down list, which may be long."""
        options = "".join(
            [
                f'<option value="{escape(str(key))}"'
                f"{' selected' if str(key) == self.chosen else ''}>{escape(str(text))}</option>"
                for key, text in self.choices
            ]
        )
        # Everything in it is escaped.
        return mark_safe(  # noqa: S308
            FIELD.format(escape(self.name), escape(str(self.label)), ATTRIBUTES, options)
        )


class DropdownFilter(admin.DropdownFilter):
    """A filter with choices of our own."""

    form_class = Form
    template = TEMPLATE


class ChoicesDropdownFilter(admin.ChoicesDropdownFilter):
    """A filter by a field's choices."""

    form_class = Form
    template = TEMPLATE


class RelatedDropdownFilter(admin.RelatedDropdownFilter):
    """A filter by the rows that a foreign key refers to."""

    form_class = Form
    template = TEMPLATE


class Since(DropdownFilter):
    """A filter for recent rows: a range of the primary key, which contains the time."""

    title = "time"
    parameter_name = "since"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Choices in hours."""
        return [("1", "Last hour"), ("24", "Last day"), ("168", "Last 7 days")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Rows with keys from that time on."""
        first = first_id(self.value())
        return queryset.filter(pk__gte=first) if first else queryset


def first_id(hours: str | None) -> int:
    """The smallest id of the last ``hours``; 0 if the text is not a number of hours."""
    if not hours or not hours.isdecimal() or len(hours) > 6:
        return 0
    return ids.id_at(clock.now() - timedelta(hours=int(hours)))
