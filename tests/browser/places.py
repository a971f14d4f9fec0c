"""The URLs of all pages of the console."""

from collections.abc import Iterator

from django.contrib import admin
from playwright.sync_api import Page

from channels_app.admin.pages import PAGES
from tests.browser.backlogs import (
    BLOCKED,
    GATEWAY,
    INSPECTOR,
    LONG,
    PAUSED,
    PRINTER,
    ROOMS,
    SENDER,
    STRICT,
)
from tests.browser.person import Person

SEVERAL = (
    "/admin/",
    *(f"/admin/{name}/" for name in PAGES),
    "/admin/delivery/delivery/?state=dead",
    "/admin/delivery/delivery/?q=nobody",
    "/admin/delivery/delivery/causes/",
    "/admin/delivery/delivery/matching/",
    "/admin/delivery/delivery/matching/?q=archive",
    "/admin/channels_app/consumer/add/",
    "/admin/auth/user/add/",
    "/admin/channels_app/message/?state=Acknowledged",
    "/admin/timeline/?span=year",
    "/admin/timeline/?span=hour",
    "/admin/channels_app/schedule/?state__exact=paused",
    f"/admin/delivery/orderingkey/?q={ROOMS}/{SENDER}",
    "/admin/delivery/orderingkey/?paused_at__isempty=0",
    "/admin/channels_app/sequence/?q=receipts",
    "/admin/delivery/traffic/1/change/",
    "/admin/usage/?month=2025-01",
    "/admin/health/?day=2025-01-01",
)
"""Pages without a table of their own, and pages that look different in some state."""
ROWS = (
    "/admin/channels_app/schedule/?q=failing",
    f"/admin/channels_app/schedule/?q={LONG}",
    "/admin/channels_app/schedule/?q=picture",
    f"/admin/channels_app/consumer/?q={PRINTER}",
    f"/admin/channels_app/consumer/?q={SENDER}",
    f"/admin/channels_app/consumer/?q={GATEWAY}",
    f"/admin/channels_app/consumer/?q={INSPECTOR}",
    "/admin/channels_app/sequence/?q=receipts",
    f"/admin/delivery/orderingkey/?q={ROOMS}/{SENDER}/{PAUSED}",
    f"/admin/delivery/orderingkey/?q={ROOMS}/{STRICT}/{BLOCKED}",
    "/admin/delivery/delivery/?state=in_flight",
    "/admin/delivery/delivery/?state=delivered",
)
"""Lists whose first row has another state than the first row of the unfiltered list."""
MODELS = sorted(model._meta.label_lower.replace(".", "/") for model in admin.site._registry)


def pages(person: Person) -> Iterator[str]:
    """Open each table's list and its first row, and its form for a new row if that has none."""
    for model in MODELS:
        page = person.open(f"/admin/{model}/")
        found = _first(page)
        can_add = page.locator(f"a[href^='/admin/{model}/add/']").count()
        yield page.url
        for place in found:
            yield person.open(place).url
        if can_add and not page.locator("[name=_save]").count():
            yield person.open(f"/admin/{model}/add/").url


def rows(person: Person) -> Iterator[str]:
    """Open the first row of each list in ROWS, and from one of them the redrive form."""
    for place in ROWS:
        (found,) = _first(person.open(place))
        page = person.open(found)
        yield page.url
        if INSPECTOR in place:
            redrive = page.get_by_role("link", name="Redrive").first
            yield person.open(str(redrive.get_attribute("href"))).url


def _first(page: Page) -> list[str]:
    row = page.locator("#result_list tr.data-row th a").first
    return [str(row.get_attribute("href"))] if row.count() else []
