"""Every page of the console is accessible.

Every window also checks that the page requests nothing from other hosts, that no script fails, and
that the content security policy holds (`person.window`).
"""

from itertools import chain

import pytest

from tests.browser import axe
from tests.browser.conftest import Sessions
from tests.browser.person import OPERATOR, Open, Person
from tests.browser.places import SEVERAL, pages, rows


def test_every_page_is_accessible(operator: Person) -> None:
    # All in one window: each new one would load the style sheets again.
    opened = chain(pages(operator), rows(operator))
    faults = [fault for _ in opened for fault in axe.faults(operator.page, colours=False)]
    assert faults == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_told_apart(open_window: Open, sessions: Sessions, scheme: str) -> None:
    person = open_window(storage_state=sessions[OPERATOR], color_scheme=scheme)
    assert [fault for place in SEVERAL for fault in axe.faults(person.open(place))] == []


def test_the_sign_in_pages_need_no_session(open_window: Open) -> None:
    assert axe.faults(open_window().open("/admin/login/")) == []


def test_times_are_local_and_the_tooltip_has_utc(open_window: Open, sessions: Sessions) -> None:
    person = open_window(storage_state=sessions[OPERATOR], timezone_id="Asia/Kolkata")
    page = person.open("/admin/delivery/delivery/?state=dead")
    time = page.locator("#result_list time").first
    assert time.evaluate(
        "time => new Date(time.textContent.replace(' ', 'T') + '+05:30').getTime()"
        " === Math.floor(new Date(time.dateTime).getTime() / 1000) * 1000"
    )
    exact = str(time.get_attribute("datetime")).replace("T", " ").replace("+00:00", " UTC")
    assert time.get_attribute("title") == exact
