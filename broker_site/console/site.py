"""Define the admin site on top of Unfold, without work that its pages do not need."""

from functools import partial
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.functional import SimpleLazyObject
from unfold.sites import UnfoldAdminSite

from broker_site.console import navigation, overview
from channels_app.portal.accounts import secure_admin_login

if TYPE_CHECKING:
    from channels_app.admin.pages import ConsolePage, View


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
        from channels_app.admin.pages import PAGES  # noqa: PLC0415 - needs this site to register

        urls = []
        for page in PAGES.values():
            view = self.admin_view(partial(self._show, page))
            urls.append(path(f"{page.name}/", view, name=page.name))
            if page.csv is not None:
                file = self.admin_view(partial(_checked, page, page.csv))
                urls.append(path(f"{page.name}/csv", file, name=f"{page.name}-csv"))
        return urls

    def _show(self, page: "ConsolePage", request: HttpRequest) -> TemplateResponse:
        page.require(request)
        context = {**self.each_context(request), **page.context(request)}
        return TemplateResponse(request, page.template, context)


def _checked(page: "ConsolePage", view: "View", request: HttpRequest) -> HttpResponseBase:
    page.require(request)
    return view(request)
