"""Live: what goes on by itself is seen on its page, the same for replays, restores and runs."""

from abc import ABCMeta, abstractmethod
from dataclasses import dataclass
from typing import Any

from django.db.models import Model
from django.forms import MediaDefiningClass
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from channels_app.admin import base
from channels_app.admin.page_context import WithPageContext
from delivery.admin.stop_action import Stoppable

TEMPLATE = "delivery/live.html"


@dataclass(frozen=True, slots=True)
class Live:
    """How far something is, in words and as a bar."""

    heading: str
    note: str = ""
    """Beside the heading."""
    done: int = 0
    most: int = 0
    """Of the bar; 0 while nobody knows how much it is, and for no bar at the end."""
    counts: str = "Progress"
    """What the bar counts, for those who do not see it."""
    error: str = ""
    facts: tuple[tuple[str, Any], ...] = ()
    """Names and values."""
    hint: str = ""
    """What to know or to do now."""
    links: tuple[tuple[str, str], ...] = ()
    """Words and addresses."""
    log: str = ""

    @property
    def told(self) -> list[tuple[str, Any]]:
        """The facts with their numbers written out."""
        return [(name, f"{it:,}" if type(it) is int else it) for name, it in self.facts]


class AbstractPage(ABCMeta, MediaDefiningClass):
    """The class of pages that leave something to be told: without it none can be registered."""


class LivePage(WithPageContext, Stoppable, metaclass=AbstractPage):
    """A page whose upper part keeps itself up to date until the row has come to its end."""

    change_form_outer_before_template = TEMPLATE

    @abstractmethod
    def live(self, row: Any) -> Live:
        """How far it is now."""

    def row_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Its bar."""
        return self._shown(row)

    def get_urls(self) -> list[URLPattern]:
        """The usual ones, and the live part by itself."""
        view = self.admin_site.admin_view(self.progress_view)
        own = path("<path:object_id>/progress", view, name=self._name)
        return [own, *super().get_urls()]

    def progress_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """How far it is now; at its end the whole page is drawn anew, for its buttons change."""
        base.require(self.has_view_permission(request))
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404(f"There is no such {self.opts.verbose_name}.")
        response = TemplateResponse(request, TEMPLATE, self._shown(row))
        if not self.is_open(row):
            response["HX-Refresh"] = "true"
        return response

    @property
    def _name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_progress"

    def _shown(self, row: Model) -> dict[str, Any]:
        return {
            "live": self.live(row),
            "is_open": self.is_open(row),
            "live_url": reverse(f"admin:{self._name}", args=[row.pk]),
        }
