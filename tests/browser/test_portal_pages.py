"""Every page of the portal and of accounts, and those of the console that are not just opened.

Each breaks no rule and shuts nobody out. What the content security policy says is looked at by
every window, as in `test_pages`.
"""

import pytest
from playwright.sync_api import Page

from tests.browser import axe, tours
from tests.browser.tours import House, accounts, console, team, webhooks


@pytest.mark.parametrize("walk", [team.walk, webhooks.walk, accounts.walk, console.walk])
def test_every_page_is_there_for_everybody(house: House, walk: tours.Walk) -> None:
    faults, wide = [], []
    for number, (name, page) in enumerate(walk(house)):
        tours.wear(page, "phone-dark" if number % 2 else "phone-light")
        wide += [f"{name}: {page.url}"] * is_too_wide(page)
        # All pages wear the same few colours: each on every third page tells nearly as much.
        faults += axe.faults(page, colours=number % 3 == 0)
        tours.wear(page, "laptop-light")  # a walk clicks what a phone keeps in a menu
    assert faults == []
    assert wide == []


def is_too_wide(page: Page) -> bool:
    """Whether somebody has to push the whole page sideways."""
    return bool(
        page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    )
