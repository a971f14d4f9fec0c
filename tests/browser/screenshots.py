"""``make screenshots``: every page on a laptop and a phone, in light and dark mode.

People look at the images; nothing is compared. pytest collects this file only when it is named.
"""

import re
from itertools import chain
from pathlib import Path

import pytest
from django.conf import settings
from playwright.sync_api import Page

from tests.browser import tours
from tests.browser.conftest import Sessions
from tests.browser.person import OPERATOR, Open
from tests.browser.places import SEVERAL, pages, rows
from tests.browser.tours import FORMS, House, accounts, console, team, webhooks

FOLDER = settings.BASE_DIR / "data" / "screenshots"


@pytest.mark.parametrize("form", FORMS)
def test_every_page_of_the_console_is_drawn(
    open_window: Open, sessions: Sessions, form: str
) -> None:
    viewport, scheme = FORMS[form]
    person = open_window(storage_state=sessions[OPERATOR], viewport=viewport, color_scheme=scheme)
    opened = chain(pages(person), (person.open(place).url for place in SEVERAL), rows(person))
    for url in opened:
        place = url.removeprefix(f"{person.base}/")
        title = re.sub(r"[^a-z0-9]+", "-", place.partition("&_")[0]).strip("-")[:100]
        draw(person.page, FOLDER / form / f"{title}.png")


@pytest.mark.parametrize("walk", [team.walk, webhooks.walk, accounts.walk, console.walk])
def test_every_page_of_a_walk_is_drawn(house: House, walk: tours.Walk) -> None:
    of = walk.__module__.rpartition(".")[2]
    part = of if walk is console.walk else f"portal-{of}"
    for number, (name, page) in enumerate(walk(house)):
        for form in FORMS:
            tours.wear(page, form)
            draw(page, FOLDER / form / f"{part}-{number:02}-{name}.png")
        tours.wear(page, "laptop-light")


def draw(page: Page, path: Path) -> None:
    """Save a screenshot of the whole page, including the part below the window."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=path, full_page=True)
