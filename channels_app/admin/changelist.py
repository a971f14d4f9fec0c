"""How the lists of large tables are read: in the order of an index, without a join."""

from typing import Any, TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest
from unfold.views import ChangeList

M = TypeVar("M", bound=Model)


class IndexOrdered(ChangeList):
    """A list that is neither sorted nor joined, whatever its columns and its address say."""

    def apply_select_related(self, queryset: QuerySet[M]) -> QuerySet[M]:
        """No joins: the database may begin with the small table, and then sorts all of this one."""
        return queryset

    def get_ordering_field_columns(self) -> dict[int, str]:
        """None."""
        return {}

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[str]:
        """The page's own; ``sortable_by`` alone only hides the links."""
        return list(self.model_admin.get_ordering(request))
