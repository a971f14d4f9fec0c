"""Keyboard shortcuts reach every page, and do not interfere with typing."""

import re

import pytest
from playwright.sync_api import Dialog, expect

from tests.browser.person import Person
from tests.support.receiver import Receiver

DEAD = "/admin/delivery/delivery/?state=dead"


def test_rows_are_walked_selected_and_opened(operator: Person) -> None:
    page = operator.open(DEAD)
    rows = page.locator("#result_list tr.data-row")
    for key, focused in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
        page.keyboard.press(key)
        expect(rows.nth(focused).locator("th a")).to_be_focused()

    page.keyboard.press("x")
    expect(page.get_by_text("1 of 25 selected")).to_be_visible()

    name = rows.nth(1).locator("th a").inner_text()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="What happened")).to_be_visible()
    expect(page.locator("#content")).to_contain_text(name)


def test_r_replays_the_row_that_has_the_focus(operator: Person, consumer: Receiver) -> None:
    page = operator.open("/admin/delivery/delivery/?q=crm")
    page.keyboard.press("j")
    page.keyboard.press("r")
    expect(page.get_by_text("is queued again")).to_be_visible()
    consumer.wait_for(1, path="/crm", timeout=60)


@pytest.mark.trap("a key press that sends twice")
def test_r_on_a_delivered_row_asks_for_confirmation(operator: Person) -> None:
    page = operator.open("/admin/delivery/delivery/?state=delivered")
    asked: list[str] = []

    def answer(dialog: Dialog) -> None:
        asked.append(dialog.message)
        if len(asked) == 1:
            dialog.dismiss()
        else:
            dialog.accept()

    page.on("dialog", answer)
    page.keyboard.press("j")
    page.keyboard.press("r")
    expect(page.get_by_text("is queued again")).to_have_count(0)
    page.keyboard.press("r")
    expect(page.get_by_text("is queued again")).to_be_visible()
    assert asked == 2 * ["This was delivered. Replay it?"]
    page.remove_listener("dialog", answer)


def test_a_question_mark_shows_the_keys(operator: Person) -> None:
    page = operator.open("/admin/channels_app/team/")
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    expect(keys).to_contain_text("replay the delivery in the row")
    page.keyboard.press("Escape")
    expect(keys).to_have_count(0)


def test_slash_opens_the_search_and_typed_keys_are_text(operator: Person) -> None:
    page = operator.open(DEAD)
    page.keyboard.press("/")
    page.keyboard.type("jr?x")
    expect(page.locator("#searchbar")).to_have_value("jr?x")
    assert page.get_by_role("dialog").count() == 0


def test_any_id_is_found_from_every_page(operator: Person) -> None:
    page = operator.open(DEAD)
    row = page.locator("#result_list tr.data-row th a").first
    name, place = row.inner_text(), row.get_attribute("href")
    operator.open("/admin/channels_app/team/1/change/")

    page.keyboard.press("/")
    expect(page.locator("#search-input-command")).to_be_focused()
    page.keyboard.type(name)
    page.get_by_role("link", name=re.compile(name)).click()

    page.wait_for_url(lambda url: str(place).partition("?")[0] in url)
