"""Define the template tags of the console."""

from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.template import Context, Library, Node, NodeList
from django.template.base import FilterExpression, Parser, Token
from unfold.templatetags.unfold_list import result_headers

from broker_site.console import changelist
from channels_app.core.program import typed

register = Library()
MAX_REMEMBERED = 100
"""Cached renderings per block and process; no block has as many variants."""

register.filter("typed", typed)


@register.filter
def is_plain(cl: ChangeList) -> bool:
    """Whether the list is read-only."""
    return changelist.is_plain(cl)


@register.inclusion_tag("admin/rows.html")
def plain_list(cl: ChangeList, may_add: bool) -> dict[str, Any]:
    """The list as a table, in place of ``unfold_result_list``, for read-only lists."""
    headers = list(result_headers(cl))
    return {
        "cl": cl,
        "result_headers": headers,
        "num_sorted_fields": sum(bool(each["sortable"] and each["sorted"]) for each in headers),
        "rows": list(changelist.rows(cl, headers)),
        "has_add_permission": may_add,
    }


class Remembered(Node):
    """Renders its block once for each combination of keys, and caches the result."""

    def __init__(self, keys: list[FilterExpression], nodelist: NodeList) -> None:
        self.keys, self.nodelist = keys, nodelist
        self.drawn: dict[str, str] = {}

    def render(self, context: Context) -> str:
        """Render the block, or return it from the cache."""
        key = repr([key.resolve(context) for key in self.keys])
        drawn = self.drawn.get(key)
        if drawn is None:
            drawn = self.nodelist.render(context)
            if len(self.drawn) >= MAX_REMEMBERED:
                self.drawn.clear()
            self.drawn[key] = drawn
        return drawn


@register.tag
def remembered(parser: Parser, token: Token) -> Remembered:
    """Cache a block that depends only on its keys: on the user only if a key contains the user.

    Usage: ``{% remembered KEY ... %}...{% endremembered %}``.
    """
    keys = [parser.compile_filter(bit) for bit in token.split_contents()[1:]]
    nodelist = parser.parse(("endremembered",))
    parser.delete_first_token()
    return Remembered(keys, nodelist)
