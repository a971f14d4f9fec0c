"""Pages of the portal, of accounts, and of the console behind forms and dialogs are accessible.

As in `test_pages`, every window checks the content security policy.
"""

import pytest
from playwright.sync_api import Page

from tests.browser import axe, tours
from tests.browser.tours import House, accounts, console, team, webhooks


@pytest.mark.parametrize("walk", [team.walk, webhooks.walk, accounts.walk, console.walk])
def test_every_page_is_accessible(house: House, walk: tours.Walk) -> None:
    faults, wide = [], []
    for number, (name, page) in enumerate(walk(house)):
        tours.wear(page, "phone-dark" if number % 2 else "phone-light")
        wide += [f"{name}: {page.url}"] * is_too_wide(page)
        # All pages share a few colours: checking every third page finds nearly as much.
        faults += axe.faults(page, colours=number % 3 == 0)
        tours.wear(page, "laptop-light")  # on a phone these links are inside a menu
    assert faults == []
    assert wide == []


def is_too_wide(page: Page) -> bool:
    """Whether the page must be scrolled sideways."""
    return bool(
        page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    )
