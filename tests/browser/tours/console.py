"""Console pages behind a click, and those of a broker without rows."""

from collections.abc import Iterator

from playwright.sync_api import Page

from tests.browser.backlogs import GATEWAY, ROOMS, SENDER
from tests.browser.conftest import base_of, write
from tests.browser.person import OPERATOR, Person
from tests.browser.tours import House, Stops

CONSUMER = "/admin/channels_app/consumer/"
ORDERING_KEYS = "/admin/delivery/orderingkey/"
RUNS = "/admin/delivery/pipelinerun/"
FAILED = ("/admin/usage/", "/admin/delivery/segment/", RUNS)
"""A report, a list and the jobs: each shows the last run that failed in a way of its own."""
EMPTY = (
    "/admin/",
    "/admin/timeline/",
    "/admin/usage/",
    "/admin/health/",
    "/admin/triage/",
    "/admin/forecast/",
    "/admin/delivery/segment/",
    RUNS,
    "/admin/channels_app/message/",
    "/admin/channels_app/schedule/",
    "/admin/delivery/delivery/?state=dead",
    "/admin/delivery/delivery/causes/",
)
"""The first pages that a new operator opens, one list of those that look alike."""


def walk(house: House) -> Stops:
    """All pages."""
    operator = house.open_window(storage_state=house.sessions[OPERATOR])
    yield from dialogs(operator)
    yield from refusals(operator)
    newcomer = house.open_window()
    newcomer.base = base_of(house.bare)
    newcomer.sign_in(OPERATOR)
    yield from reports(newcomer, "empty", EMPTY)
    write(house.bare, "bare", "failed")
    yield from reports(newcomer, "failed", FAILED)
    yield "run-failed", _first(newcomer, RUNS)


def dialogs(operator: Person) -> Stops:
    """Dialogs that confirm an action."""
    for name, place, words in (
        ("renew", f"{CONSUMER}?q={GATEWAY}", "Renew provider's address"),
        ("secret", f"{CONSUMER}?q={GATEWAY}", "New secret"),
        ("skip", f"{ORDERING_KEYS}?q={ROOMS}/{SENDER}/room-1", "Skip the head"),
    ):
        page = _first(operator, place)
        page.get_by_role("link", name=words).click()
        page.locator("#dialog").get_by_role("button").last.wait_for()
        yield f"dialog-{name}", page


def refusals(operator: Person) -> Stops:
    """A form with invalid fields."""
    page = _first(operator, f"{CONSUMER}?q={GATEWAY}")
    page.locator("[name=ack]").fill('{"mode": "callback", "timeout_ms": 1}')
    page.get_by_role("button", name="Save", exact=True).click()
    page.locator(".errorlist").first.wait_for()
    yield "consumer-refused", page


def reports(newcomer: Person, state: str, places: tuple[str, ...]) -> Iterator[tuple[str, Page]]:
    """These pages, named by their addresses."""
    for place in places:
        parts = [part for part in place.split("/") if part]
        yield (
            f"{state}-{'-'.join(parts[1:]).replace('?', '-').replace('=', '-')}",
            newcomer.open(place),
        )


def _first(person: Person, place: str) -> Page:
    """Open the first row of a list."""
    row = person.open(place).locator("#result_list tr.data-row th a").first
    return person.open(str(row.get_attribute("href")))
