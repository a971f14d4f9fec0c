"""A team's pages: overview, members, invitations, keys, audit log; and refusals."""

import re

from playwright.sync_api import Page

from tests.browser.person import GUEST, OWNER
from tests.browser.showcase import EMPTY, FOREIGN, TEAM
from tests.browser.tours import House, Stops

PORTAL = "/portal/"


def walk(house: House) -> Stops:
    """All pages."""
    guest = house.open_window(storage_state=house.sessions[GUEST])
    yield "home-no-team", guest.open(PORTAL)
    owner = house.open_window(storage_state=house.sessions[OWNER])
    owner.expects(422)
    yield "home-several-teams", owner.open(PORTAL)
    yield "team-new", owner.open(f"{PORTAL}-/new/")
    page = owner.page
    page.get_by_label("Name", exact=True).fill("Harbour")
    page.get_by_label("Short name").fill("Not a name")
    page.get_by_role("button", name="Create the team").click()
    yield "team-new-refused", page
    yield "home-empty", owner.open(f"{PORTAL}{EMPTY}/")
    yield "home-full", owner.open(f"{PORTAL}{TEAM}/")
    page.locator(".bar .menu summary").first.click()
    yield "menu-teams", page
    page.locator(".bar .menu summary").last.click()
    yield "menu-person", page
    yield from members(house, owner.page, guest.page)
    yield from keys(owner.page, f"{owner.base}{PORTAL}")
    yield from producers(owner.page, f"{owner.base}{PORTAL}")
    for name, team in (("empty", FOREIGN), ("full", TEAM)):
        yield f"audit-{name}", owner.open(f"{PORTAL}{team}/audit/")
    page.locator("details summary").last.click()
    yield "audit-open", page
    yield "members-as-viewer", owner.open(f"{PORTAL}{FOREIGN}/members/")
    owner.expects(403, 404)
    for name, path in (("forbidden", f"{FOREIGN}/keys/new/"), ("not-found", "nowhere/")):
        page.goto(f"{owner.base}{PORTAL}{path}")
        yield f"problem-{name}", page
    page.goto(f"{owner.base}/admin/")
    yield "problem-no-operator", page


def members(house: House, page: Page, other: Page) -> Stops:
    """The team's members, and an invitation of a new one."""
    team = page.url.rstrip("/")
    page.goto(f"{team}/members/")
    page.locator("td.act summary").first.click()
    yield "members", page
    page.get_by_role("link", name="Invite someone").click()
    yield "invite", page
    page.locator("[name=email]").fill("sofia.lindqvist@contractors.example")
    page.get_by_role("button", name="Create the link").click()
    yield "invite-made", page
    link = page.locator("pre").inner_text()
    page.goto(f"{team}/members/")
    yield "members-invited", page
    nobody = house.open_window()
    nobody.page.goto(link)
    yield "invitation-waiting", nobody.page
    other.goto(link)
    yield "invitation-waiting-signed-in", other
    other.get_by_role("button", name=re.compile("^Join")).click()
    yield "invitation-joined", other
    nobody.expects(404)
    nobody.page.goto(link)
    yield "invitation-ended", nobody.page


def keys(page: Page, portal: str) -> Stops:
    """Create, rotate and revoke a key."""
    page.goto(f"{portal}{EMPTY}/keys/")
    yield "keys-empty", page
    page.goto(f"{portal}{TEAM}/keys/")
    yield "keys-full", page
    page.goto(f"{portal}{TEAM}/keys/new/")
    yield "key-new", page
    page.get_by_label("Name").fill("Cron")
    page.locator("[name=owner]").select_option("team")
    page.locator("[name=channels]").first.check()
    page.get_by_role("button", name="Create the key").click()
    yield "key-refused", page
    page.locator("[name=scopes][value=publish]").uncheck()
    page.locator("[name=scopes][value=read]").check()
    page.get_by_role("button", name="Create the key").click()
    yield "key-made", page
    page.goto(f"{portal}{TEAM}/keys/")
    page.locator("tr", has_text="Deploy script").get_by_role("link", name="Rotate").click()
    yield "key-rotate", page
    page.get_by_role("button", name="Rotate the key").click()
    yield "key-rotated", page
    page.goto(f"{portal}{TEAM}/keys/")
    page.locator("tr", has_text="Cron").get_by_text("Revoke", exact=True).click()
    yield "key-revoke", page
    page.get_by_role("button", name="Revoke the key").click()
    yield "key-revoked", page


def producers(page: Page, portal: str) -> Stops:
    """The systems that publish for the team."""
    page.goto(f"{portal}{EMPTY}/producers/")
    yield "producers-empty", page
    page.goto(f"{portal}{TEAM}/producers/-/new/")
    yield "producer-new", page
    page.get_by_label("Name").fill("Not a name")
    page.get_by_role("button", name="Create the producer").click()
    yield "producer-refused", page
    page.get_by_label("Name").fill("point-of-sale-terminals-of-all-our-shops")
    page.get_by_role("button", name="Create the producer").click()
    page.goto(f"{portal}{TEAM}/producers/")
    yield "producers", page
    page.goto(f"{portal}{TEAM}/producers/web-shop/")
    yield "producer", page
