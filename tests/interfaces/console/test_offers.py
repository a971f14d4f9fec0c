"""What pages offer to viewers: no button that changes something, and no link that is refused.

Who is refused at each address is in tests/golden/access.txt.
"""

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import urljoin

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import resolve, reverse

from channels_app.admin.pages import PAGES
from delivery.models import Delivery
from tests.support import console
from tests.support.factories import DeliveryFactory, MessageFactory

pytestmark = pytest.mark.django_db

LINK = re.compile(r'\s(?:href|action|formaction|hx-get|hx-post)="([^"#]+)')


def pages() -> Iterator[str]:
    """Yield the page of each kind, the list of each table, and the page of its newest row."""
    yield reverse("admin:index")
    yield console.list_url(Delivery, "?state=dead")
    yield from map(console.page_url, Delivery.objects.filter(state="dead"))
    yield from (reverse(f"admin:{name}") for name in PAGES)
    for model in admin.site._registry:
        yield console.list_url(model)
        yield from map(console.page_url, model._default_manager.order_by("-pk")[:1])


def offered(client: Client) -> dict[str, str]:
    """Return one address of each URL name to which the pages lead."""
    links: dict[str, str] = {}
    for page in pages():
        answer = client.get(page)
        for address in LINK.findall(answer.content.decode()) if answer.status_code == 200 else ():
            target = urljoin(page, unescape(address))
            if target.startswith("/admin/"):
                links.setdefault(resolve(target.partition("?")[0]).url_name or "", target)
    return links


def is_refused(client: Client, target: str) -> bool:
    answer = client.get(target)
    if answer.status_code == 405:  # a button
        answer = client.post(target)
    return answer.status_code in (403, 404)


@pytest.mark.slow("opens every page")
def test_viewers_are_offered_nothing_that_is_refused() -> None:
    """Those who may change something are offered it: tests of each page."""
    console.fill()
    DeliveryFactory.create()
    MessageFactory.create(scheduled=True)
    viewer = console.onlooker()
    links = offered(viewer)
    del links["logout"]

    assert len(links) > 50
    assert [target for target in links.values() if is_refused(viewer, target)] == []
