"""Every page of the console is accessible.

Every window also checks that the page requests nothing from other hosts, that no script fails, and
that the content security policy holds (`person.window`).
"""

from itertools import chain

from tests.browser import axe, tours
from tests.browser.conftest import Sessions
from tests.browser.person import OPERATOR, Open, Person
from tests.browser.places import SEVERAL, pages, rows


def test_every_page_is_accessible(operator: Person) -> None:
    # All in one window: each new one would load the style sheets again.
    opened = chain(pages(operator), rows(operator))
    faults = [fault for _ in opened for fault in axe.faults(operator.page, axe.BUT_COLOURS)]
    assert faults == []


def test_colours_can_be_told_apart_in_both_schemes(operator: Person) -> None:
    faults = []
    for place in SEVERAL:
        page = operator.open(place)
        faults += axe.faults(page, axe.EVERYTHING)
        tours.wear(page, "laptop-dark")
        faults += [f"dark: {fault}" for fault in axe.faults(page, axe.ONLY_COLOURS)]
        tours.wear(page, "laptop-light")
    assert faults == []


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
