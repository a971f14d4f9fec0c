"""The pages of webhooks: catalogue, registration, and all tabs of a webhook."""

import re

from playwright.sync_api import Page, expect

from tests.browser.person import OWNER, Person
from tests.browser.showcase import (
    CHANNEL,
    DISABLED,
    EMPTY,
    FAILING,
    FOREIGN,
    FRESH,
    PAUSED,
    PULLED,
    STEADY,
    TEAM,
)
from tests.browser.tours import House, Stops
from tests.support.broker import Broker

PLACE = f"/portal/{TEAM}/webhooks/"


def walk(house: House) -> Stops:
    """All pages."""
    owner = house.open_window(storage_state=house.sessions[OWNER])
    yield "webhooks-empty", owner.open(f"/portal/{EMPTY}/webhooks/")
    yield "webhooks-empty-as-viewer", owner.open(f"/portal/{FOREIGN}/webhooks/")
    yield "webhooks", owner.open(PLACE)
    yield from catalogue(owner, house.broker)
    yield from registering(owner, house.consumer.url("/tour"))
    yield from one(owner)
    yield from tests(owner, house.consumer.url("/ok"))
    yield from deliveries(owner)
    yield from replays(owner)
    yield "upcoming", owner.open(f"{PLACE}{CHANNEL}/{STEADY}/upcoming/")


def catalogue(owner: Person, broker: Broker) -> Stops:
    """The catalogue of channels and event types."""
    external = ("news", CHANNEL, "tides")
    for exposure in ("internal", "external"):
        for channel in external:
            broker.call("PATCH", f"/channels/{channel}", 200, json={"exposure": exposure})
        if exposure == "internal":
            yield "catalogue-empty", owner.open(f"{PLACE}-/catalogue/")
    yield "catalogue", owner.open(f"{PLACE}-/catalogue/")
    yield "channel", owner.open(f"{PLACE}-/catalogue/{CHANNEL}/")
    yield "channel-empty", owner.open(f"{PLACE}-/catalogue/tides/")


def registering(owner: Person, url: str) -> Stops:
    """From the empty form to the secret."""
    page = owner.open(f"{PLACE}-/new/{CHANNEL}/")
    yield "register", page
    owner.expects(409, 422)
    page.get_by_label("Name", exact=True).fill("Not a name")
    page.get_by_label("Address").fill("http://10.0.0.1/hooks")
    expect(page.locator(".check-result")).not_to_be_empty()
    page.get_by_text("Headers and description").click()
    page.get_by_label("Headers of your own").fill("no colon here")
    page.get_by_role("button", name="Register", exact=True).click()
    yield "register-refused", page
    page.get_by_label("Address").fill(url)
    page.get_by_role("button", name="Try the address").click()
    yield "register-tried", page
    page.get_by_label("Name", exact=True).fill("tracking-page")
    page.get_by_label("Headers of your own").fill("X-Tenant: 4711")
    page.get_by_role("button", name="Register", exact=True).click()
    page.locator("#secret").wait_for()
    yield "registered", page
    page = owner.open(f"{PLACE}-/new/{CHANNEL}/")
    page.get_by_label("Name", exact=True).fill("stock-keepers")
    page.get_by_label("It pulls them").check()
    yield "register-pull", page
    page.get_by_role("button", name="Register", exact=True).click()
    page.get_by_role("heading", name="2. Receive").wait_for()
    yield "registered-pull", page


def one(owner: Person) -> Stops:
    """A webhook's tabs, in each state of the webhook."""
    for name in (PAUSED, DISABLED):
        yield f"webhook-{name.partition('-')[0]}", owner.open(f"{PLACE}{CHANNEL}/{name}/")
    for tab in ("", "health/", "settings/", "secret/"):
        name = f"webhook-pull-{tab.strip('/') or 'deliveries'}"
        yield name, owner.open(f"{PLACE}{CHANNEL}/{PULLED}/{tab}")
    place = f"{PLACE}{CHANNEL}/{FAILING}/"
    page = owner.open(place)
    page.get_by_text("Pause", exact=True).first.click()
    yield "webhook-failing", page
    yield "health-failing", owner.open(f"{place}health/")
    yield "upcoming-failing", owner.open(f"{place}upcoming/")
    yield "upcoming-empty", owner.open(f"{PLACE}{CHANNEL}/{FRESH}/upcoming/")
    place = f"{PLACE}{CHANNEL}/{STEADY}/"
    yield "health", owner.open(f"{place}health/")
    page.get_by_text("The same as a table").click()
    yield "health-table", page
    yield "health-week", owner.open(f"{place}health/?span=7d")
    yield "health-empty", owner.open(f"{PLACE}{CHANNEL}/{FRESH}/health/")
    yield "settings", owner.open(f"{PLACE}{CHANNEL}/tracking-page/settings/")
    page.get_by_text("Retire this webhook").click()
    yield "settings-retire", page
    yield "secret", owner.open(f"{PLACE}{CHANNEL}/{FRESH}/secret/")
    page.get_by_role("button", name="Create a new secret").click()
    page.locator("#secret").wait_for()
    yield "secret-rotated", page
    for language in ("node", "go", "php", "curl"):
        label = page.locator(f"label[for=snippet-{language}]")
        if label.count():
            label.click()
            yield f"snippet-{language}", page


def tests(owner: Person, url: str) -> Stops:
    """A test event that is accepted, and one that is not."""
    page = owner.open(f"{PLACE}{CHANNEL}/{FRESH}/test/")
    yield "test", page
    page.get_by_role("button", name="Send a test").last.click()
    page.get_by_role("heading", name="Your response").wait_for()
    yield "test-answered", page
    address(owner, "http://127.0.0.1:9/nobody")
    page = owner.open(f"{PLACE}{CHANNEL}/{FRESH}/test/")
    page.get_by_role("button", name="Send a test").last.click()
    page.get_by_role("heading", name="Your response").wait_for()
    yield "test-refused", page
    address(owner, url)


def address(owner: Person, url: str) -> None:
    """Change the new webhook's URL."""
    page = owner.open(f"{PLACE}{CHANNEL}/{FRESH}/settings/")
    page.get_by_label("Address").fill(url)
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status").filter(has_text="Saved")).to_be_visible()


def deliveries(owner: Person) -> Stops:
    """Lists of deliveries and single ones."""
    yield "deliveries-empty", owner.open(f"{PLACE}{CHANNEL}/{FRESH}/")
    place = f"{PLACE}{CHANNEL}/{STEADY}/"
    yield "deliveries", owner.open(place)
    yield "deliveries-second-page", _older(owner.page)
    yield "deliveries-none-match", owner.open(f"{place}?state=Delivered&event_type=stock.low")
    page = owner.open(f"{place}?state=Dead&event_type=shipment.delayed&since=1h")
    yield "deliveries-filtered", page
    rows = page.locator("table tbody tr a")
    found = [str(rows.nth(place).get_attribute("href")) for place in range(rows.count())]
    for name, href in zip(("hex", "text", "form", "json"), found, strict=True):
        yield f"delivery-{name}", owner.open(href)
    page.get_by_text("Copy as curl").click()
    page.locator(".timeline summary").first.click()
    yield "delivery-open", page
    for name, state in (
        ("retrying", "Retry-Delivery"),
        ("delivered", "Delivered"),
        ("cancelled", "Cancelled"),
    ):
        page = owner.open(f"{place}?state={state}")
        page.locator("table tbody tr a").first.click()
        yield f"delivery-{name}", page


def _older(page: Page) -> Page:
    page.get_by_role("link", name="Older").click()
    return page


def replays(owner: Person) -> Stops:
    """A replay, from the dead letters to the result."""
    yield "dead-letters-empty", owner.open(f"{PLACE}{CHANNEL}/{FRESH}/dead/")
    yield "replays-empty", owner.open(f"{PLACE}{CHANNEL}/{FRESH}/replays/")
    place = f"{PLACE}{CHANNEL}/{FAILING}/"
    yield "dead-letters", owner.open(f"{place}dead/")
    page = owner.page
    for box in range(2):
        page.locator("td.tick input").nth(box).check()
    page.get_by_role("button", name="Replay the selected").click()
    yield "replay-selected", page
    _send(page, "two of them, to see whether it is back")
    expect(page.locator("[data-live-url]")).to_contain_text("finished")
    yield "replay-finished", page
    owner.open(f"{place}dead/").get_by_role("link", name="Replay all that match").click()
    yield "replay-all", page
    page.get_by_label("Messages per second").fill("0.5")
    _send(page, "the warehouse is back")
    yield "replay-running", page
    page.locator("summary", has_text="Cancel the rest").click()
    yield "replay-cancel", page
    page.get_by_role("button", name="Cancel the rest").click()
    expect(page.locator("[data-live-url]")).to_contain_text("cancelled")
    yield "replay-cancelled", page
    yield "replays", owner.open(f"{place}replays/")
    yield "dead-letters-none-match", owner.open(f"{place}dead/?outcome=gone")


def _send(page: Page, reason: str) -> None:
    page.get_by_role("textbox", name="Reason", exact=True).fill(reason)
    page.get_by_role("button", name=re.compile("^Replay [0-9]")).click()
    page.locator("[data-live-url]").wait_for()
