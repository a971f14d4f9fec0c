"""Tours of every page of the portal and of accounts.

A tour is a generator: it yields a name and a page whenever there is something to check, and goes on
from there. Pages behind a form are reached by submitting it.
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
"""Views of a page: the window's size and the system's colour scheme."""


@dataclass(frozen=True)
class House:
    """What a tour needs."""

    open_window: Open
    broker: Broker
    consumer: Receiver
    sessions: dict[str, StorageState]
    bare: Broker
    """A broker without any messages, which lets everyone sign up."""


Walk = Callable[[House], Stops]


def wear(page: Page, form: str) -> None:
    """Show the page in another view, without a reload."""
    viewport, scheme = FORMS[form]
    page.wait_for_load_state()  # a click may have led to a page that has no root element yet
    page.set_viewport_size(viewport)  # type: ignore[arg-type]  # a dict has it all
    # Without animation: a screenshot must not show a half-finished transition.
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]  # light or dark
    # The console chooses its colour scheme only when a page loads.
    dark = "dark => document.documentElement.classList.toggle('dark', dark)"
    page.evaluate(dark, scheme == "dark")
    page.evaluate("scrollTo(0, 0)")
