"""Operators' tasks in the console, from the first click to the effect."""

import re
import sqlite3
import time

import pytest
import requests
from playwright.sync_api import expect

from tests.browser.person import Open, Person
from tests.support.broker import Broker
from tests.support.receiver import Receiver


@pytest.mark.smoke
def test_an_operator_signs_in_finds_a_dead_letter_and_sends_it_again(
    open_window: Open, consumer: Receiver
) -> None:
    somebody = open_window()
    page = somebody.sign_in("olga")
    page.get_by_role("link", name=re.compile("^ *unsubscribe *Dead letters")).first.click()
    page.get_by_placeholder("client id").fill("billing")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=billing**")
    row = page.locator("#result_list tr.data-row")
    expect(row).to_have_count(1)

    row.get_by_role("button", name=re.compile("Replay dlv_")).click()

    expect(page.get_by_text("is queued again")).to_be_visible()
    assert "q=billing" in page.url
    (request,) = consumer.wait_for(1, path="/billing", timeout=60)
    assert request.body == b'{"order": 17, "total": "12.50"}'
    assert request.header("Hookstation-Replay") == "true"


def test_replay_of_fifty_thousand_dead_letters_can_be_stopped_half_way(
    operator: Person, broker: Broker
) -> None:
    page = operator.open("/admin/delivery/delivery/causes/")
    pile = page.locator("section", has_text="orders / archive")
    expect(pile).to_contain_text("50,000")
    pile.get_by_role("link", name="Replay all").click()
    expect(page.locator(".hs-count")).to_contain_text("50,000 deliveries match.")
    # Fast enough to move the bar, slow enough to stop halfway.
    page.get_by_label("Maximum per second").fill("300")
    page.get_by_label("Reason").fill("the archive is back")
    page.get_by_role("button", name="Replay 50,000").click()

    bar = page.get_by_role("progressbar", name="Queued again")
    expect(bar).to_have_attribute("max", "50000")
    expect(bar).to_have_attribute("value", re.compile(r"^[1-9]\d+$"))
    seen = int(str(bar.get_attribute("value")))
    page.get_by_role("link", name="Stop").click()
    page.locator("#dialog").get_by_role("button", name="Stop it").click()

    facts = page.locator(".hs-facts dd")
    expect(facts).to_have_count(3)
    matched, queued, left = (int(text.replace(",", "")) for text in facts.all_inner_texts())
    assert matched == 50_000 == queued + left
    assert seen <= queued < matched
    assert counted(broker) == {"dead": left, "queued": queued}
    page.get_by_role("link", name="Still dead").click()
    expect(page.locator("#result_list tr.data-row")).to_have_count(25)


def counted(broker: Broker) -> dict[str, int]:
    """Count the archive's deliveries by state, directly in the database."""
    with sqlite3.connect(broker.folder / "broker.sqlite3") as database:
        return dict(
            database.execute(
                "SELECT state, COUNT(*) FROM delivery_delivery WHERE consumer_id = "
                "(SELECT id FROM channels_app_consumer WHERE client_id = 'archive') GROUP BY state"
            )
        )


def test_a_revoked_key_stops_working_within_a_second(operator: Person, broker: Broker) -> None:
    page = operator.open("/admin/channels_app/apikey/add/")
    page.get_by_label("Label").fill("walk")
    page.get_by_role("combobox", name="Producer").click()
    page.get_by_role("searchbox").last.fill("shop")
    page.get_by_role("option", name="shop", exact=True).click()
    page.get_by_label("All channels").check()
    page.get_by_role("button", name="Save", exact=True).click()
    key = page.locator("[data-secret]").inner_text()

    def publish() -> int:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        with requests.Session() as http:
            http.trust_env = False
            url = f"{broker.base}/channels/orders/messages"
            return http.post(url, data=b"{}", headers=headers, timeout=60).status_code

    assert publish() == 202

    page.get_by_role("link", name="I have it").click()
    page.get_by_role("link", name="Revoke").click()
    page.locator("#dialog").get_by_role("button", name="Revoke").click()
    expect(page.get_by_text("revoked").first).to_be_visible()
    answered = time.monotonic()
    while publish() != 401:
        assert time.monotonic() < answered + 1, "the key still works"
