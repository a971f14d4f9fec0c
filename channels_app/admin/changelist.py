"""Read lists of large tables in the order of an index, without joins."""

from typing import Any, TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest
from unfold.views import ChangeList

M = TypeVar("M", bound=Model)


class IndexOrdered(ChangeList):
    """A list without sorting and joins, whatever its columns and the URL request."""

    def apply_select_related(self, queryset: QuerySet[M]) -> QuerySet[M]:
        """No joins: the database could start with the small table and then sort this one."""
        return queryset

    def get_ordering_field_columns(self) -> dict[int, str]:
        """No columns can be sorted."""
        return {}

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[str]:
        """The page's own order; ``sortable_by`` only hides the links."""
        return list(self.model_admin.get_ordering(request))
