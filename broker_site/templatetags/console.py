"""Template tags of the console."""

from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.template import Context, Library, Node, NodeList
from django.template.base import FilterExpression, Parser, Token
from unfold.templatetags.unfold_list import result_headers

from broker_site import changelist
from channels_app.rules.program import typed

register = Library()
MAX_REMEMBERED = 100
"""Drawings of one block that a process keeps: as many as there are ways to look at it, and more."""


register.filter("typed", typed)


@register.filter
def is_plain(cl: ChangeList) -> bool:
    """Whether people only look at the list."""
    return changelist.is_plain(cl)


@register.inclusion_tag("admin/rows.html")
def plain_list(cl: ChangeList, may_add: bool) -> dict[str, Any]:
    """The list as a table: what ``unfold_result_list`` shows, for lists that are plain."""
    headers = list(result_headers(cl))
    return {
        "cl": cl,
        "result_headers": headers,
        "num_sorted_fields": sum(bool(each["sortable"] and each["sorted"]) for each in headers),
        "rows": list(changelist.rows(cl, headers)),
        "has_add_permission": may_add,
    }


class Remembered(Node):
    """Draws its block once for each value of its keys, and afterwards takes it from memory."""

    def __init__(self, keys: list[FilterExpression], nodelist: NodeList) -> None:
        self.keys, self.nodelist = keys, nodelist
        self.drawn: dict[str, str] = {}

    def render(self, context: Context) -> str:
        """The block."""
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
    """A block that follows from its keys alone: never from who asks, unless a key says so.

    Usage: ``{% remembered KEY ... %}...{% endremembered %}``.
    """
    keys = [parser.compile_filter(bit) for bit in token.split_contents()[1:]]
    nodelist = parser.parse(("endremembered",))
    parser.delete_first_token()
    return Remembered(keys, nodelist)
