"""Walks through every page of the portal and of accounts, each as somebody comes to it.

A walk is a generator: it yields a name and a page whenever there is something to look at, and goes
on from there. What needs a form is reached by sending it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from playwright.sync_api import Page, StorageState

from tests.browser.person import LAPTOP, PHONE, Open
from tests.support.broker import Broker
from tests.support.receiver import Receiver

Stops = Iterator[tuple[str, Page]]
FORMS = {
    f"{screen}-{scheme}": (viewport, scheme)
    for screen, viewport in (("laptop", LAPTOP), ("phone", PHONE))
    for scheme in ("light", "dark")
}
"""How a page is looked at: the window's size, and what the system wears."""


@dataclass(frozen=True)
class House:
    """What a walk needs."""

    open_window: Open
    broker: Broker
    consumer: Receiver
    sessions: dict[str, StorageState]
    open_house: Broker
    """The same broker with sign-up for everybody."""
    bare: Broker
    """One to which nothing has happened yet."""


Walk = Callable[[House], Stops]


def wear(page: Page, form: str) -> None:
    """Look at the page in another form, without loading it anew."""
    viewport, scheme = FORMS[form]
    page.set_viewport_size(viewport)  # type: ignore[arg-type]  # a dict has it all
    # Without motion: a picture is taken at once, and not of what is half way.
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]  # light or dark
    # The console decides by itself what it wears, when a page is loaded.
    dark = "dark => document.documentElement.classList.toggle('dark', dark)"
    page.evaluate(dark, scheme == "dark")
    page.evaluate("scrollTo(0, 0)")
