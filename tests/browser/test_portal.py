"""A team's first steps in the portal, up to the first delivery."""

import re

from playwright.sync_api import Page, expect

from tests.browser.person import MEMBER, Open
from tests.support.broker import Broker, wait_until
from tests.support.receiver import Receiver


def test_a_member_registers_a_webhook_and_sees_its_first_delivery(
    open_window: Open, broker: Broker, consumer: Receiver
) -> None:
    somebody = open_window()
    page = somebody.sign_in(MEMBER, "/portal/")
    page.wait_for_url("**/portal/acme/")
    page.get_by_role("link", name="Catalogue").first.click()
    page.get_by_role("link", name=re.compile("news")).click()
    page.get_by_role("link", name="Register a webhook here").click()
    page.get_by_label("Name").first.fill("website")
    page.get_by_label("Address").fill(consumer.url("/website"))
    page.get_by_role("button", name="Register", exact=True).click()
    expect(page.get_by_role("heading", name="website is registered")).to_be_visible()
    assert page.locator("#secret").inner_text().startswith("whsec_")

    published = broker.call(
        "POST",
        "/channels/news/messages",
        202,
        json={"headline": "It works"},
        headers={"Hookstation-Event-Type": "news.published"},
    )
    (request,) = consumer.wait_for(1, path="/website", timeout=60)
    assert request.header("webhook-id") == published["id"]

    page.get_by_role("link", name="Show its deliveries").click()
    rows = page.locator("table tbody tr")
    # The consumer has the request; the broker records the result a moment later.
    wait_until(lambda: shows_delivered(page), 20, "the delivery is not shown as delivered")
    expect(rows).to_have_count(1)
    rows.get_by_role("link").first.click()
    expect(page.locator("main")).to_contain_text("It works")


def shows_delivered(page: Page) -> bool:
    page.reload()
    return "delivered 200" in page.locator("table tbody").inner_text()


def test_portal_pages_have_no_inline_scripts_or_styles(open_window: Open) -> None:
    page = open_window().open("/accounts/login/")
    answer = page.request.get(page.url)
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
