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
    """Return one page of the channels, in ``parts`` disjoint ranges."""
    read = cursor.read(Request(requests.get(f"{path}?{query}")))
    ranges = [Channel.objects.filter(retention_days=part) for part in range(1, parts + 1)]
    return read.answer(ranges, lambda row: {"slug": row.slug})


def slugs(shown: Any) -> list[str]:
    return [item["slug"] for item in shown["items"]]


def onward(shown: Any, word: str, **more: Any) -> Iterator[Any]:
    while shown[word]:
        shown = page(f"cursor={shown[word]}", **more)
        yield shown


@pytest.mark.parametrize("parts", [1, 3])
def test_every_row_is_seen_once_there_and_back(parts: int) -> None:
    rows = [ChannelFactory.create(retention_days=1 + n % parts).slug for n in range(8)][::-1]
    for limit in (1, 2, 7, 8, 200):
        first = page(f"limit={limit}", parts=parts)
        pages = [first, *onward(first, "next", parts=parts)]
        assert [slug for shown in pages for slug in slugs(shown)] == rows, limit
        back = list(onward(pages[-1], "previous", parts=parts))
        assert [slugs(shown) for shown in back] == [slugs(shown) for shown in pages[-2::-1]], limit


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


def test_an_empty_older_page_links_back_to_all_newer_rows() -> None:
    rows = [ChannelFactory.create(retention_days=1) for _ in range(3)]
    first = page("limit=2")
    rows[0].delete()
    empty = page(f"cursor={first['next']}")
    assert (empty["items"], empty["next"]) == ([], None)
    assert slugs(page(f"cursor={empty['previous']}")) == [rows[2].slug, rows[1].slug]


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


def test_an_invalid_limit_or_filter_is_refused() -> None:
    limits = ("0", "-1", "201", "1.5", "ten", "", "9" * 50, "²", "1_0", " 5")
    for name, value in [("limit", it) for it in limits] + [
        ("colour", "x" * 501),
        ("colour", "%00"),
    ]:
        with pytest.raises(Invalid) as refusal:
            page(f"{name}={value}")
        assert refusal.value.field == name, value
