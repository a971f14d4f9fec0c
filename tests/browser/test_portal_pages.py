"""Pages of the portal, of accounts, and of the console behind forms and dialogs are accessible.

As in `test_pages`, every window checks the content security policy.
"""

import pytest
from playwright.sync_api import Page

from tests.browser import axe, tours
from tests.browser.tours import House, accounts, console, team, webhooks

REPEATS = {
    # Accounts: other words or fields in the same form.
    *("login-locked-out", "sign-up-open", "sign-up-refused", "e-mail-confirm-useless"),
    *("password-change-refused", "second-factor-set-up-refused", "second-factor-again"),
    *("second-factor-end", "recovery-codes-new", "logged-out"),
    # A team: the same page is checked again with a part of it opened.
    *("home-full", "keys-full", "audit-full", "invitation-joined", "problem-not-found"),
    # Webhooks: other rows, states, times and languages, or a part of the page is opened later.
    *("webhooks-empty-as-viewer", "webhook-old", "webhook-pull-deliveries"),
    *("webhook-pull-health", "upcoming-failing", "health", "health-week", "settings"),
    *("secret-rotated", "snippet-node", "snippet-go", "snippet-php", "test-refused"),
    *("deliveries", "delivery-json", "delivery-delivered", "delivery-cancelled"),
    *("replay-all", "replay-running", "replay-cancelled", "dead-letters-none-match"),
}
"""Stops whose page consists of the same parts as that of another stop, which axe checks."""


@pytest.mark.parametrize("walk", [team.walk, webhooks.walk, accounts.walk, console.walk])
def test_every_page_is_accessible(house: House, walk: tours.Walk) -> None:
    faults, wide = [], []
    for number, (name, page) in enumerate(walk(house)):
        tours.wear(page, "phone-dark" if number % 2 else "phone-light")
        wide += [f"{name}: {page.url}"] * is_too_wide(page)
        if name not in REPEATS:
            # All pages share a few colours: checking every third page finds nearly as much.
            faults += axe.faults(page, axe.BUT_COLOURS if number % 3 else axe.EVERYTHING)
        tours.wear(page, "laptop-light")  # on a phone these links are inside a menu
    assert faults == []
    assert wide == []


def is_too_wide(page: Page) -> bool:
    """Whether the page must be scrolled sideways."""
    return bool(
        page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    )
