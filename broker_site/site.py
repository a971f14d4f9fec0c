"""Site: the Django admin under Unfold, without the work that its pages do not need."""

from typing import Any

from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.functional import SimpleLazyObject
from unfold.sites import UnfoldAdminSite

from broker_site import navigation, overview


class Console(UnfoldAdminSite):
    """The operator console."""

    def get_sidebar_list(self, request: HttpRequest) -> list[dict[str, Any]]:
        """The ways around."""
        return navigation.sidebar(request)

    def get_tabs_list(self, request: HttpRequest) -> list[dict[str, Any]]:
        """The lists beside this one."""
        return navigation.tabs(request)

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> Any:
        """Every table that this person may see; found out when a page asks for it: few do."""
        return SimpleLazyObject(lambda: super(Console, self).get_app_list(request, app_label))

    def index(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> TemplateResponse:
        """The first page; ``?part=live`` is that part of it which changes, without the frame."""
        if request.GET.get("part") == "live":
            return TemplateResponse(request, "admin/overview.html", overview.context(request))
        return super().index(request, extra_context)  # type: ignore[no-any-return]
