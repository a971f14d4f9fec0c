"""Show the live progress of replays, restores and pipeline runs in the console."""

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
    """Progress in text and as a bar."""

    heading: str
    note: str = ""
    """Text beside the heading."""
    done: int = 0
    most: int = 0
    """Maximum of the bar; 0 while it is unknown, and for no bar at the end."""
    counts: str = "Progress"
    """What the bar counts, for screen readers."""
    error: str = ""
    facts: tuple[tuple[str, Any], ...] = ()
    """Labels and values."""
    hint: str = ""
    """A hint or an instruction."""
    links: tuple[tuple[str, str], ...] = ()
    """Links: label and URL."""
    log: str = ""

    @property
    def formatted_facts(self) -> list[tuple[str, Any]]:
        """The facts with formatted numbers."""
        return [(name, f"{it:,}" if type(it) is int else it) for name, it in self.facts]


class AbstractPage(ABCMeta, MediaDefiningClass):
    """A metaclass with abstract methods, so that incomplete pages cannot be registered."""


class LivePage(WithPageContext, Stoppable, metaclass=AbstractPage):
    """A page whose upper part refreshes itself until the row has ended."""

    change_form_outer_before_template = TEMPLATE

    @abstractmethod
    def live(self, row: Any) -> Live:
        """The present progress."""

    def row_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Its progress."""
        return self._shown(row)

    def get_urls(self) -> list[URLPattern]:
        """Add the URL of the refreshed part."""
        view = self.admin_site.admin_view(self.progress_view)
        own = path("<path:object_id>/progress", view, name=self._name)
        return [own, *super().get_urls()]

    def progress_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Return the present progress; at the end reload the page, since its buttons change."""
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
