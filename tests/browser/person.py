"""A person at a browser window, which records faults."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from playwright.sync_api import Browser, ConsoleMessage, Page, Request

OPERATOR, MEMBER = "olga", "paula"
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
    """Script errors, violations of the content security policy, and requests to other hosts."""
    expected: frozenset[int] = frozenset()
    """Response statuses that are not recorded as faults."""

    @classmethod
    def at(cls, page: Page, base: str) -> Self:
        """Make a person for a page, and begin to record faults."""
        person = cls(base, page)
        page.on("console", person._hear)
        page.on("pageerror", lambda error: person.faults.append(f"{page.url}: {error}"))
        page.on("request", person._follow)
        return person

    def open(self, path: str) -> Page:
        """Open a path of the broker; the response must be successful."""
        answer = self.page.goto(f"{self.base}{path}")
        assert answer is not None
        assert answer.ok, (path, answer.status)
        return self.page

    def sign_in(self, name: str, at: str = "/admin/") -> Page:
        """Sign in with the form, on the way to the page ``at``."""
        page = self.open(at)
        page.get_by_label("User name").fill(name)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{self.base}{at}**")
        return page

    def expects(self, *statuses: int) -> None:
        """Accept these response statuses from now on; the browser logs each as an error."""
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
    """Open a window with an empty profile; afterwards assert that no fault was recorded."""
    context = browser.new_context(**{"viewport": LAPTOP, **options})
    context.set_default_timeout(PATIENCE_MS)
    try:
        person = Person.at(context.new_page(), base)
        yield person
    finally:
        context.close()
    assert not person.faults, "\n".join(person.faults)
