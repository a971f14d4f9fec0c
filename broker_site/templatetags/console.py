"""Template tags of the console."""

from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.template import Library
from unfold.templatetags.unfold_list import result_headers

from broker_site import rows

register = Library()


@register.filter
def is_plain(cl: ChangeList) -> bool:
    """Whether people only look at the list."""
    return rows.is_plain(cl)


@register.inclusion_tag("admin/rows.html")
def plain_list(cl: ChangeList, may_add: bool) -> dict[str, Any]:
    """The list as a table: what ``unfold_result_list`` shows, for lists that are plain."""
    headers = list(result_headers(cl))
    return {
        "cl": cl,
        "result_headers": headers,
        "num_sorted_fields": sum(bool(each["sortable"] and each["sorted"]) for each in headers),
        "rows": list(rows.rows(cl, headers)),
        "has_add_permission": may_add,
    }
