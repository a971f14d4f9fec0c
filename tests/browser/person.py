"""Person: somebody at a browser window, who notices what goes wrong in it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from playwright.sync_api import Browser, ConsoleMessage, Page, Request

OPERATOR, ONLOOKER, MEMBER = "olga", "otto", "paula"
OWNER, GUEST, STRANGER = "rosa", "gus", "hanna"
PASSWORD = "correct horse battery staple"
PATIENCE_MS = 20_000
LAPTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@dataclass
class Person:
    """A window on the broker at ``base``."""

    base: str
    page: Page
    faults: list[str] = field(default_factory=list)
    """Errors of scripts, refusals by the content security policy, requests to elsewhere."""
    expected: frozenset[int] = frozenset()
    """Answers that are no fault of the page's."""

    @classmethod
    def at(cls, page: Page, base: str) -> Self:
        """Somebody who begins to look."""
        person = cls(base, page)
        page.on("console", person._hear)
        page.on("pageerror", lambda error: person.faults.append(f"{page.url}: {error}"))
        page.on("request", person._follow)
        return person

    def open(self, path: str) -> Page:
        """Go to an address of the broker; the page must be there."""
        answer = self.page.goto(f"{self.base}{path}")
        assert answer is not None
        assert answer.ok, (path, answer.status)
        return self.page

    def sign_in(self, name: str, at: str = "/admin/") -> Page:
        """Through the form, as everybody who comes to a page and is not known yet."""
        page = self.open(at)
        page.get_by_label("User name").fill(name)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{self.base}{at}**")
        return page

    def expects(self, *statuses: int) -> None:
        """From now on pages may be answered with these; a browser calls each one an error."""
        self.expected |= frozenset(statuses)

    def _hear(self, message: ConsoleMessage) -> None:
        if any(f"status of {status} " in message.text for status in self.expected):
            return
        if message.type in {"error", "warning"}:
            self.faults.append(f"{self.page.url}: {message.text}")

    def _follow(self, request: Request) -> None:
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.faults.append(f"{self.page.url} asks for {request.url}")


Open = Callable[..., Person]


@contextmanager
def window(browser: Browser, base: str, **options: Any) -> Iterator[Person]:
    """A window with an empty profile; afterwards nothing may have gone wrong in it."""
    context = browser.new_context(**{"viewport": LAPTOP, **options})
    context.set_default_timeout(PATIENCE_MS)
    try:
        person = Person.at(context.new_page(), base)
        yield person
    finally:
        context.close()
    assert not person.faults, "\n".join(person.faults)
