"""Render the rows of a list, and compute once what they have in common.

Unfold recomputes the headers of a list for every row, one of them through a form widget.
"""

from collections.abc import Callable, Iterator
from html import escape
from typing import Any, cast

from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import lookup_field, quote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import FieldDoesNotExist
from django.db.models import DateField, Field, ForeignKey, Model, TimeField
from django.urls import reverse
from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe
from unfold.templatetags.unfold_list import CHECKBOX_CLASSES, LINK_CLASSES, ROW_CLASSES
from unfold.utils import display_for_field, display_for_value

Read = Callable[[Any], Any]
CHECKBOX = "action_checkbox"
BODY = (
    '<tbody class="block relative lg:table-row-group{}">'
    '<tr class="data-row block border border-base-200 mb-3 relative rounded-default lg:table-row '
    'lg:border-none lg:mb-0 lg:rounded-none dark:border-base-800">{}</tr></tbody>'
)
TONES = ("", " bg-base-50 dark:bg-white/[.02]")
"""CSS classes of the rows, alternating."""
EXTRAS = ("actions_row", "list_sections", "ordering_field")
"""Attributes by which Unfold extends rows."""
DECORATIONS = ("label", "header", "dropdown")
"""Options of Unfold's ``display``; our pages return HTML of their own instead."""


def is_plain(cl: ChangeList) -> bool:
    """Whether the list is read-only; forms, menus and popups are left to Unfold."""
    page = cl.model_admin
    methods = [getattr(page, str(name), None) for name in cl.list_display]
    return not (
        cl.formset
        or cl.is_popup
        or any(getattr(page, more, None) for more in EXTRAS)
        or any(getattr(method, more, None) for method in methods for more in DECORATIONS)
    )


def rows(cl: ChangeList, headers: list[dict[str, Any]]) -> Iterator[SafeString]:
    """Render the rows of the page."""
    columns = [
        _column(cl, str(name), header["text"])
        for name, header in zip(cl.list_display, headers, strict=True)
    ]
    for place, row in enumerate(cl.result_list):
        cells = "".join([cell(row) for cell in columns])
        yield mark_safe(BODY.format(TONES[place % 2], cells))  # noqa: S308 - cells are escaped


def _column(cl: ChangeList, name: str, title: str) -> Callable[[Model], str]:
    """A function that renders the cells of a column."""
    links = cl.list_display_links or ()
    tag = "th" if name in links[:1] else "td"
    read, classes = _reader(cl, name)
    if name == CHECKBOX:
        title, classes = "Select record", CHECKBOX_CLASSES
    start = format_html('<{} class="{}" data-label="{}">', tag, " ".join(classes), title)
    end = f"</{tag}>"
    if name not in links:
        return lambda row: f"{start}{_html(read(row))}{end}"
    before, after = _link(cl)
    return lambda row: f"{start}{before}{quote(row.pk)}{after}{_html(read(row))}</a>{end}"


def _link(cl: ChangeList) -> tuple[str, str]:
    """The link to a row's page: the parts before and after the row's key."""
    page = reverse(f"admin:{cl.opts.app_label}_{cl.opts.model_name}_change", args=["0"])
    context: dict[str, Any] = {"preserved_filters": cl.preserved_filters, "opts": cl.opts}
    before, _, after = page.rpartition("/0/")
    query = add_preserved_filters(context, page).removeprefix(page)
    end = format_html('/{}{}" class="{}">', after, query, " ".join(LINK_CLASSES))
    return format_html('<a href="{}/', before), end


def _reader(cl: ChangeList, name: str) -> tuple[Read, list[str]]:
    """A function that reads the value for display, and the CSS classes of its cells."""
    page = cl.model_admin
    classes = [f"field-{name}", *ROW_CLASSES]
    empty = page.get_empty_value_display()
    field = _field(cl, name)
    if isinstance(field, ForeignKey):
        return lambda row: _or(getattr(row, name), empty), [*classes, "nowrap"]
    if field is not None:
        narrow = ["nowrap"] * isinstance(field, DateField | TimeField)
        return lambda row: display_for_field(getattr(row, name), field, empty), classes + narrow
    method = getattr(page, name, None)
    if method is None or name == "__str__":
        return lambda row: display_for_value(lookup_field(name, row, page)[2], empty), classes
    empty = getattr(method, "empty_value_display", empty)
    if getattr(method, "boolean", False):
        return lambda row: display_for_value(method(row), empty, True), classes
    return lambda row: _text(method(row), empty), classes


def _field(cl: ChangeList, name: str) -> "Field[Any, Any] | None":
    """The model's own field of this name; None for a reverse relation."""
    try:
        field = cl.opts.get_field(name)
    except FieldDoesNotExist:
        return None
    return field if isinstance(field, Field) else None


def _text(value: Any, empty: str) -> str:
    """Return strings unchanged, as most cells are."""
    return value if isinstance(value, str) else display_for_value(value, empty)


def _html(value: Any) -> str:
    """Escape a value, with fewer calls than Django's function for strings."""
    kind = type(value)
    if kind is SafeString:
        return cast(str, value)
    return escape(value) if kind is str else conditional_escape(value)


def _or(value: Any, empty: str) -> Any:
    return empty if value is None else value
