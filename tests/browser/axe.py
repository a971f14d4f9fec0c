"""Accessibility checks with axe."""

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

_axe = Axe()
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
COLOURS = "color-contrast"
"""The rule that checks every letter, and takes as long as all others together."""
EVERYTHING = {"runOnly": TAGS}
BUT_COLOURS = {"runOnly": TAGS, "rules": {COLOURS: {"enabled": False}}}
ONLY_COLOURS = {"runOnly": [COLOURS]}
GRAVE = {"serious", "critical"}

SETTLED = (
    """() => new Promise(done => window.django?.jQuery ? django.jQuery(() => done()) : done())"""
)
"""Waits for jQuery's handlers that run after the page has loaded."""


def faults(page: Page, rules: dict[str, Any]) -> list[str]:
    """Violations of impact serious or critical, each with its element."""
    page.evaluate(SETTLED)
    options = {"resultTypes": ["violations"], **rules}
    found = _axe.run(page, options=options).response["violations"]
    return [
        f"{page.url}: {fault['id']}: {node['html'][:200]}"
        for fault in found
        if fault["impact"] in GRAVE
        for node in fault["nodes"]
    ]
