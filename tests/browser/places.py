"""Every page of the console that can be walked to."""

from collections.abc import Iterator

from django.contrib import admin

from tests.browser.person import Person

SEVERAL = (
    "/admin/",
    "/admin/delivery/delivery/?state=dead",
    "/admin/delivery/delivery/?q=nobody",
    "/admin/delivery/delivery/causes/",
    "/admin/delivery/delivery/matching/",
    "/admin/delivery/delivery/matching/?q=archive",
    "/admin/delivery/deadcluster/triage/",
    "/admin/delivery/forecastframe/forecast/",
    "/admin/channels_app/consumer/add/",
    "/admin/channels_app/message/?state=accepted",
    "/admin/timeline/",
    "/admin/timeline/?span=year",
    "/admin/delivery/traffic/1/change/",
    "/admin/usage/",
    "/admin/usage/?month=2025-01",
    "/admin/delivery/healthday/worst/",
    "/admin/delivery/healthday/worst/?day=2025-01-01",
)
"""Pages that are of no table alone, or look otherwise in a certain state."""
MODELS = sorted(model._meta.label_lower.replace(".", "/") for model in admin.site._registry)


def pages(person: Person) -> Iterator[str]:
    """Opens the list of every table, its first row and the form of a new one."""
    for model in MODELS:
        page = person.open(f"/admin/{model}/")
        row = page.locator("#result_list tr.data-row th a").first
        found = [str(row.get_attribute("href"))] if row.count() else []
        if page.locator(f"a[href^='/admin/{model}/add/']").count():
            found.append(f"/admin/{model}/add/")
        yield page.url
        for place in found:
            yield person.open(place).url
