"""The pages of accounts: sign-in, password reset, and a person's own settings."""

import base64
import hashlib
import hmac
import re
import struct
import time

from playwright.sync_api import Page, expect

from tests.browser.conftest import base_of
from tests.browser.person import OWNER, PASSWORD, STRANGER, Person
from tests.browser.showcase import TEAM
from tests.browser.tours import House, Stops
from tests.support.broker import Broker, wait_until

ANOTHER = "staple battery horse correct"


def walk(house: House) -> Stops:
    """All pages."""
    yield from entrance(house)
    yield from forgotten(house)
    yield from own(house)
    yield from second_factor(house)


def entrance(house: House) -> Stops:
    """Sign in, and create an account."""
    somebody = house.open_window()
    somebody.expects(404, 409, 429)
    page = somebody.open("/accounts/login/")
    yield "login", page
    _sign_in(page, "nobody", "not my password")
    yield "login-refused", page
    for _ in range(5):
        _sign_in(page, "nobody", "not my password")
    yield "login-locked-out", page
    yield "sign-up-closed", somebody.open("/accounts/signup/")
    page.goto(_invited(house))
    page.get_by_role("link", name="Create an account").click()
    yield "sign-up-invited", page
    _sign_up(page, "stella", "short")
    yield "sign-up-refused", page
    _sign_up(page, "stella", PASSWORD)
    yield "sign-up-joining", page
    page.get_by_role("button", name=re.compile("^Join")).click()

    stranger = house.open_window()
    stranger.base = base_of(house.bare)
    page = stranger.open("/accounts/login/")
    yield "login-sign-up-open", page
    page.get_by_role("link", name="Create an account").click()
    yield "sign-up-open", page
    _sign_up(page, "stranger", PASSWORD)
    yield "e-mail-sent", page
    page.goto(link_in_mail(house.bare, "stranger@example.com", "confirm-email"))
    yield "e-mail-confirm", page
    yield "e-mail-confirm-useless", stranger.open("/accounts/confirm-email/nothing/")


def forgotten(house: House) -> Stops:
    """Reset a forgotten password."""
    somebody = house.open_window()
    page = somebody.open("/accounts/password/reset/")
    yield "password-forgotten", page
    page.locator("[name=email]").fill("hanna@harbour.example")
    page.get_by_role("button", name="Send the link").click()
    yield "password-sent", page
    link = link_in_mail(house.broker, "hanna@harbour.example", "password/reset/key")
    page.goto(link)
    yield "password-new", page
    _choose(page, "short")
    yield "password-new-refused", page
    _choose(page, PASSWORD)
    yield "password-changed", page
    page.goto(link)
    yield "password-link-useless", page


def own(house: House) -> Stops:
    """Change the e-mail address and the password."""
    hanna = house.open_window()
    hanna.sign_in(STRANGER, "/portal/")
    yield "e-mail", hanna.open("/accounts/email/")
    page = hanna.page
    page.locator("[name=email]").last.fill("hanna.hannasdaughter@a-very-long-name.harbour.example")
    page.get_by_role("button", name="Change the address").click()
    yield "e-mail-changing", page
    yield "password-change", hanna.open("/accounts/password/change/")
    _choose(page, "short")
    yield "password-change-refused", page
    yield "reauthenticate", hanna.open("/accounts/reauthenticate/")
    yield "logout", hanna.open("/accounts/logout/")
    page.get_by_role("button", name=re.compile("Sign out", re.I)).last.click()
    yield "logged-out", page


def second_factor(house: House) -> Stops:
    """Set up, use and remove the second factor."""
    owner = house.open_window()
    owner.sign_in(OWNER, "/portal/")
    page = owner.open("/accounts/2fa/")
    yield "second-factor", page
    page.locator("a[href$='totp/activate/']").click()
    yield "second-factor-again", page
    page.locator("[name=password]").fill(PASSWORD)
    page.locator("main form [type=submit]").click()
    yield "second-factor-set-up", page
    secret = page.locator("main pre").inner_text()
    page.locator("[name=code]").fill("000000")
    page.locator("main form [type=submit]").click()
    yield "second-factor-set-up-refused", page
    page.locator("[name=code]").fill(code_of(secret))
    page.locator("main form [type=submit]").click()
    yield "recovery-codes", page
    yield "second-factor-active", owner.open("/accounts/2fa/")
    yield "recovery-codes-new", owner.open("/accounts/2fa/recovery-codes/generate/")
    yield "second-factor-end", owner.open("/accounts/2fa/totp/deactivate/")
    yield "reauthenticate-code", owner.open("/accounts/2fa/reauthenticate/")

    again = house.open_window()
    page = again.open("/accounts/login/")
    _sign_in(page, OWNER, PASSWORD)
    yield "login-code", page
    page.locator("[name=code]").fill("000000")
    page.locator("main form [type=submit]").first.click()
    yield "login-code-refused", page

    owner.open("/accounts/2fa/totp/deactivate/")
    owner.page.locator("main form [type=submit]").click()
    expect(owner.page.locator("main")).to_be_visible()


def link_in_mail(broker: Broker, address: str, part: str) -> str:
    """The link in the newest e-mail to this address."""
    found: list[str] = []

    def came() -> bool:
        mails = sorted((broker.folder / "mail").glob("*"), key=lambda mail: mail.stat().st_mtime)
        texts = [text for mail in mails if f"To: {address}" in (text := mail.read_text())]
        links = re.findall(r"http://\S+", "\n".join(texts).replace("=\n", ""))
        found[:] = [link for link in links if part in link]
        return bool(found)

    wait_until(came, 20, f"no mail to {address}")
    return found[-1]


def code_of(secret: str) -> str:
    """The current code of an authenticator app, or the next one (RFC 6238)."""
    left_s = 30 - time.time() % 30
    if left_s < 15:
        time.sleep(left_s)  # a code that expires while it is typed is refused
    key = base64.b32decode(secret + "=" * (-len(secret) % 8))
    digest = hmac.digest(key, struct.pack(">Q", int(time.time()) // 30), hashlib.sha1)
    start = digest[-1] & 15
    (number,) = struct.unpack(">I", digest[start : start + 4])
    return f"{(number & 0x7FFFFFFF) % 1_000_000:06}"


def _invited(house: House) -> str:
    owner = Person.open(house.open_window(storage_state=house.sessions[OWNER]),
                        f"/portal/{TEAM}/members/invite/")  # fmt: skip
    owner.get_by_role("button", name="Create the link").click()
    return owner.locator("pre").inner_text()


def _sign_in(page: Page, name: str, password: str) -> None:
    page.locator("[name=login]").fill(name)
    page.locator("[name=password]").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_load_state()


def _sign_up(page: Page, name: str, password: str) -> None:
    page.locator("[name=username]").fill(name)
    page.locator("[name=email]").fill(f"{name}@example.com")
    _choose(page, password)


def _choose(page: Page, password: str) -> None:
    for field in ("oldpassword", "password1", "password2"):
        box = page.locator(f"main [name={field}]")
        if box.count():
            box.fill(PASSWORD if field == "oldpassword" else password)
    page.locator("main form [type=submit]").first.click()
    page.wait_for_load_state()
