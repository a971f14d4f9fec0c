"""Register the console's pages that do not belong to one table, such as reports."""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase

Context = Callable[[HttpRequest], Mapping[str, Any]]
View = Callable[[HttpRequest], HttpResponseBase]


class ConsolePage(NamedTuple):
    """A page at ``/admin/<name>/``; its URL's name is ``admin:<name>``."""

    name: str
    permission: str
    """``app.codename``; superusers have every one."""
    template: str
    context: Context
    """Returns the template's context, with ``title``."""
    csv: View | None
    """Returns the page's contents as a CSV file, at ``/admin/<name>/csv``; ``admin:<name>-csv``."""

    def may_view(self, request: HttpRequest) -> bool:
        """Whether the user may view the page."""
        return bool(request.user.has_perm(self.permission))

    def require(self, request: HttpRequest) -> None:
        """Raise PermissionDenied unless the user may view the page."""
        if not self.may_view(request):
            raise PermissionDenied


PAGES: dict[str, ConsolePage] = {}
"""All pages by name, complete once the apps have loaded their admin modules."""


def page(
    name: str, *, permission: str, template: str, csv: View | None = None
) -> Callable[[Context], Context]:
    """Register the decorated function, which returns the context, as a page of the console."""

    def register(context: Context) -> Context:
        PAGES[name] = ConsolePage(name, permission, template, context, csv)
        return context

    return register


class _Echo:
    """A file whose ``write`` returns the text."""

    def write(self, text: str) -> str:
        return text


def csv_file(name: str, lines: Iterable[Sequence[Any]]) -> StreamingHttpResponse:
    """A CSV file, whose lines are read while they are sent."""
    writer = csv.writer(_Echo())
    answer = StreamingHttpResponse(map(writer.writerow, lines), content_type="text/csv")
    answer["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    return answer
