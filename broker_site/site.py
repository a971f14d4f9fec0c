"""Site: the Django admin under Unfold, without the work that its pages do not need."""

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from unfold.sites import UnfoldAdminSite

from broker_site import navigation


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
