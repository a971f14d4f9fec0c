"""``make screenshots``: every page as a laptop and a phone show it, by day and by night.

For people to look at; nothing is compared. Not collected unless it is named.
"""

import re
from itertools import chain, product

import pytest
from django.conf import settings

from tests.browser.conftest import Sessions
from tests.browser.person import LAPTOP, OPERATOR, PHONE, Open
from tests.browser.places import SEVERAL, pages

FOLDER = settings.BASE_DIR / "data" / "screenshots"
FORMS = product((("laptop", LAPTOP), ("phone", PHONE)), ("light", "dark"))


@pytest.mark.parametrize(("screen", "scheme"), list(FORMS), ids=lambda value: value[0])
def test_every_page_is_drawn(
    open_window: Open, sessions: Sessions, screen: tuple[str, dict[str, int]], scheme: str
) -> None:
    name, viewport = screen
    person = open_window(storage_state=sessions[OPERATOR], viewport=viewport, color_scheme=scheme)
    folder = FOLDER / f"{name}-{scheme}"
    folder.mkdir(parents=True, exist_ok=True)
    opened = chain(pages(person), (person.open(place).url for place in SEVERAL))
    for url in opened:
        place = url.removeprefix(f"{person.base}/")
        title = re.sub(r"[^a-z0-9]+", "-", place.partition("&_")[0]).strip("-")
        person.page.screenshot(path=folder / f"{title}.png")
