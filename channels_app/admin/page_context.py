"""Add template context around a row's fields, or above a list."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from unfold.admin import ModelAdmin


class WithPageContext(ModelAdmin):
    """A page with templates beyond Django's, and the context for them."""

    def row_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Context for the page of this row."""
        return {}

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """Context for the list."""
        return {}

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Add the context of the row, if it exists and may be viewed."""
        row = self.get_object(request, object_id)
        may = row is not None and self.has_view_permission(request, row)
        more = self.row_context(request, row) if may else {}
        if request.method != "POST":  # a form changes its row, so it has to be read again
            request.looked_at = row  # type: ignore[attr-defined]  # an attribute of ours
        page: HttpResponse = super().change_view(
            request, object_id, form_url, more | (extra_context or {})
        )
        return page

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """The row; reuses the one that was read for the context."""
        known = getattr(request, "looked_at", None)
        if known is None:
            return super().get_object(request, object_id, from_field)
        request.looked_at = None  # type: ignore[attr-defined]  # an attribute of ours
        return known

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Add the context of the list."""
        more = self.list_context(request)
        page: HttpResponse = super().changelist_view(request, more | (extra_context or {}))
        return page
