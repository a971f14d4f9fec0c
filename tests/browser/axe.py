"""Axe: what a page gets wrong for people who cannot see it, or use no mouse."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

_axe = Axe()
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
COLOURS = "color-contrast"
"""Looks behind each letter, which takes as long as all other rules together."""
GRAVE = {"serious", "critical"}

SETTLED = (
    """() => new Promise(done => window.django?.jQuery ? django.jQuery(() => done()) : done())"""
)
"""jQuery goes on when the page is loaded: what waits in its line comes first."""


def faults(page: Page, *, colours: bool = True) -> list[str]:
    """What is serious or worse, with the element that it is about."""
    options = {
        "runOnly": TAGS,
        "resultTypes": ["violations"],
        "rules": {COLOURS: {"enabled": colours}},
    }
    page.evaluate(SETTLED)
    found = _axe.run(page, options=options).response["violations"]
    return [
        f"{page.url}: {fault['id']}: {node['html'][:200]}"
        for fault in found
        if fault["impact"] in GRAVE
        for node in fault["nodes"]
    ]
