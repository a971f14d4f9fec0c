"""Cursors are signed, bound to their list and filters, and return every row exactly once."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from rest_framework.request import Request
from rest_framework.test import APIRequestFactory

from channels_app.api import cursor
from channels_app.core.errors import Invalid
from channels_app.models import Channel
from tests.support.factories import ChannelFactory

requests = APIRequestFactory()
pytestmark = pytest.mark.django_db


def page(query: str = "", *, path: str = "/list", parts: int = 1) -> Any:
    """Return one page of the channels, in ``parts`` disjoint slices."""
    read = cursor.read(Request(requests.get(f"{path}?{query}")))
    slices = [Channel.objects.filter(retention_days=part) for part in range(1, parts + 1)]
    return read.answer(slices, lambda row: {"slug": row.slug})


def slugs(shown: Any) -> list[str]:
    return [item["slug"] for item in shown["items"]]


def onward(shown: Any, word: str, **more: Any) -> Iterator[Any]:
    while shown[word]:
        shown = page(f"cursor={shown[word]}", **more)
        yield shown


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("limit", [1, 2, 7, 8, 200])
def test_every_row_is_seen_once_there_and_back(limit: int, parts: int) -> None:
    rows = [ChannelFactory.create(retention_days=1 + n % parts).slug for n in range(8)][::-1]
    first = page(f"limit={limit}", parts=parts)
    pages = [first, *onward(first, "next", parts=parts)]
    assert [slug for shown in pages for slug in slugs(shown)] == rows
    back = list(onward(pages[-1], "previous", parts=parts))
    assert [slugs(shown) for shown in back] == [slugs(shown) for shown in pages[-2::-1]]


def test_added_or_deleted_rows_do_not_shift_pages() -> None:
    rows = [ChannelFactory.create(retention_days=1) for _ in range(6)]
    first = page("limit=2")
    ChannelFactory.create(retention_days=1)
    rows[4].delete()
    second = page(f"cursor={first['next']}")
    assert slugs(second) == [rows[3].slug, rows[2].slug]
    newer = page(f"cursor={first['next']}")
    assert slugs(page(f"cursor={newer['previous']}"))[0] != slugs(first)[0]


def test_an_empty_page_links_back() -> None:
    rows = [ChannelFactory.create(retention_days=1) for _ in range(3)]
    second = page(f"cursor={page('limit=2')['next']}")
    Channel.objects.filter(id__gt=rows[0].id).delete()
    empty = page(f"cursor={second['previous']}")
    assert (empty["items"], empty["previous"]) == ([], None)
    assert slugs(page(f"cursor={empty['next']}")) == [rows[0].slug]


def test_an_empty_list_has_no_other_pages() -> None:
    assert page() == {"items": [], "next": None, "previous": None}


def test_the_cursor_keeps_filters_and_limit() -> None:
    for _ in range(5):
        ChannelFactory.create(retention_days=1)
    first = page("limit=2&colour=red")
    read = cursor.read(Request(requests.get(f"/list?cursor={first['next']}")))
    assert (dict(read.filters), read.limit) == ({"colour": "red"}, 2)
    assert len(slugs(page(f"cursor={first['next']}&limit=1&colour=red"))) == 1
    with pytest.raises(Invalid, match="keeps its own filters"):
        page(f"cursor={first['next']}&colour=blue")


def test_a_changed_or_foreign_cursor_is_refused() -> None:
    for _ in range(3):
        ChannelFactory.create(retention_days=1)
    good = page("limit=1")["next"]
    body, _, signature = good.rpartition(":")
    values = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    forged = urlsafe_b64encode(json.dumps([values[0], 0, 10_000, {}]).encode()).decode().strip("=")
    for bad in ["", "x", good[:-1], good + "x", f"{forged}:{signature}", "\x00", "é", ":::"]:
        with pytest.raises(Invalid) as refusal:
            page(f"cursor={bad}")
        assert refusal.value.field == "cursor"
    with pytest.raises(Invalid):
        page(f"cursor={good}", path="/other-list")


@pytest.mark.parametrize("limit", ["0", "-1", "201", "1.5", "ten", "", "9" * 50, "²", "1_0", " 5"])
def test_an_invalid_limit_is_refused(limit: str) -> None:
    with pytest.raises(Invalid) as refusal:
        page(f"limit={limit}")
    assert refusal.value.field == "limit"


@pytest.mark.parametrize("value", ["x" * 501, "%00"])
def test_an_invalid_filter_is_refused(value: str) -> None:
    with pytest.raises(Invalid) as refusal:
        page(f"colour={value}")
    assert refusal.value.field == "colour"
