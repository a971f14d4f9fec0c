"""What a page of the console shows around a row's fields, or above a list."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from unfold.admin import ModelAdmin


class WithPageContext(ModelAdmin):
    """A page with templates of its own beside those of every table; this is what they show."""

    def row_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """What is told beside the fields of this row."""
        return {}

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """What is told over the list."""
        return {}

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The row, and what stands around it; nothing does where there is no such row."""
        row = self.get_object(request, object_id)
        may = row is not None and self.has_view_permission(request, row)
        more = self.row_context(request, row) if may else {}
        if request.method != "POST":  # a form changes its row, and asks for it anew
            request.looked_at = row  # type: ignore[attr-defined]  # a note of ours
        page: HttpResponse = super().change_view(
            request, object_id, form_url, more | (extra_context or {})
        )
        return page

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Any:
        """The row; the one that was just read for what stands around it is not read twice."""
        known = getattr(request, "looked_at", None)
        if known is None:
            return super().get_object(request, object_id, from_field)
        request.looked_at = None  # type: ignore[attr-defined]  # a note of ours
        return known

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The list, and what stands over it."""
        more = self.list_context(request)
        page: HttpResponse = super().changelist_view(request, more | (extra_context or {}))
        return page
