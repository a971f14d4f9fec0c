"""Define the admin site on top of Unfold, without work that its pages do not need."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.functional import SimpleLazyObject
from unfold.sites import UnfoldAdminSite

from broker_site import navigation, overview, system, upcoming, usage
from channels_app.portal.accounts import secure_admin_login


class Console(UnfoldAdminSite):
    """The operator console."""

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """The common context; colours are defined in console.css instead of in each page."""
        context: dict[str, Any] = super().each_context(request)
        return context | {"colors": None}

    def get_sidebar_list(self, request: HttpRequest) -> list[dict[str, Any]]:
        """The entries of the sidebar."""
        return navigation.sidebar(request)

    def get_tabs_list(self, request: HttpRequest) -> list[dict[str, Any]]:
        """The tabs of related lists."""
        return navigation.tabs(request)

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> Any:
        """The tables that the user may see, computed lazily, since few pages need them."""
        return SimpleLazyObject(lambda: super(Console, self).get_app_list(request, app_label))

    def login(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect to the one sign-in page, which counts wrong passwords (decision 12)."""
        answer: HttpResponse = secure_admin_login(super().login)(request, extra_context)
        return answer

    def index(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> TemplateResponse:
        """The start page; ``?part=live`` returns only its live part."""
        if request.GET.get("part") == "live":
            return TemplateResponse(request, "admin/overview.html", overview.context(request))
        page: TemplateResponse = super().index(request, extra_context)
        return page

    def extra_urls(self) -> list[URLPattern]:
        """Pages that do not belong to a table."""
        return [
            path("system/", self.admin_view(self.system), name="system"),
            path("timeline/", self.admin_view(self.timeline), name="timeline"),
            path("usage/", self.admin_view(self.usage), name="usage"),
            path("usage/csv", self.admin_view(usage.download), name="usage-csv"),
        ]

    def system(self, request: HttpRequest) -> TemplateResponse:
        """The page about the running system."""
        return system.page(request, self.each_context(request))

    def timeline(self, request: HttpRequest) -> TemplateResponse:
        """The page of upcoming messages."""
        return upcoming.page(request, self.each_context(request))

    def usage(self, request: HttpRequest) -> TemplateResponse:
        """The page of usage per producer and consumer."""
        return usage.page(request, self.each_context(request))
