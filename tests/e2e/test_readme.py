"""The commands in the documentation work as printed and produce the printed output."""

import base64
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from django.conf import settings
from django.core.management import get_commands

from tests.support import ports, transcripts
from tests.support.receiver import Receiver, Request
from tests.support.transcripts import Exchange, Session

ROOT = Path(settings.BASE_DIR)
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
OWN_INSTALLATION = "## An installation of your own"
INSTALL = "make install"

needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="the sessions are typed with curl")

Begin = Callable[[], Session]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Open sessions; close all of them after the test."""
    opened: list[Session] = []

    def open_one() -> Session:
        web, receiver = ports.claim(2), ports.claim(2)
        session = Session(tmp_path, ROOT, Path(sys.prefix), web=web, receiver=receiver)
        opened.append(session)
        return session

    yield open_one
    for session in opened:
        session.close()


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_make_target_and_command_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    text = text_of(page)
    code = "\n".join(re.findall(r"`[^`\n]+`|^```.*?^```$", text, re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"\bmake ([a-z-]+)", code))
    assert named <= targets
    commands = set(re.findall(r"manage\.py ([a-z_]+)", code))
    # `pipeline` is no Django command; `relay_outbox` belongs to the Python client.
    assert commands <= {*get_commands(), "pipeline", "relay_outbox"}


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), target
        if anchor:
            assert anchor in anchors(text_of(place)), target


def test_the_help_of_make_says_what_the_readme_says() -> None:
    # Drop what a surrounding `make test` put into the environment.
    make = ["/bin/sh", "-c", "unset MAKEFLAGS MAKELEVEL MFLAGS; make"]
    shown = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("demo", "test", "test-sqlite", "lint", "format"):
        assert f"make {target} " in shown
        assert f"make {target}" in text_of(README)


@pytest.mark.smoke
@pytest.mark.seed("S4-34")
@needs_curl
@pytest.mark.e2e
def test_the_session_of_the_readme_runs_on_the_demo(begin: Begin) -> None:
    session = begin()
    web = session.web
    session.start(f".venv/bin/python manage.py demo --port {web}")
    session.wait_for_output("Hookstation is running.")
    first_part = text_of(README).partition(OWN_INSTALLATION)[0]
    session.play(transcripts.exchanges(first_part))

    key = (session.folder / "data/demo/shop.key").read_text().strip()
    with Receiver() as consumer:
        secret, genuine = deliver(f"http://127.0.0.1:{web}/api/v1", key, consumer)
    check_verifiers(secret, genuine)


@needs_curl
@pytest.mark.e2e
def test_the_readme_installation_responds_as_documented(begin: Begin) -> None:
    session = begin()
    session.play(own_installation())
    session.play(transcripts.exchanges(text_of(ROOT / "docs/api.md")))


@pytest.mark.e2e
def test_the_commands_print_what_their_page_says(begin: Begin) -> None:
    session = begin()
    chosen = f"SECRET_KEY={'0123456789' * 6} HOOKSTATION_ALLOWED_TARGETS=127.0.0.0/8"
    session.run(f". .venv/bin/activate; export {chosen}")
    session.play(transcripts.exchanges(text_of(ROOT / "docs/commands.md")))


def own_installation() -> list[Exchange]:
    """The README's installation, without the step that the test environment has already done."""
    part = text_of(README).partition(OWN_INSTALLATION)[2]
    install, *lines, broker = transcripts.blocks(part, "sh")[0].splitlines()
    assert install == INSTALL
    # The pages' receivers run on this machine.
    allow = transcripts.blocks(part, "sh")[1].strip()
    assert "ALLOWED_TARGETS" in allow
    lines.insert(next(at for at, line in enumerate(lines) if line.startswith("set -a")), allow)
    (printed,) = transcripts.exchanges(part)
    return [Exchange("\n".join(lines)), Exchange(broker, printed.expected)]


def deliver(url: str, key: str, consumer: Receiver) -> tuple[str, Request]:
    """Deliver a message; return the consumer's secret and the request that it received."""
    with requests.Session() as http:
        http.trust_env = False
        http.headers["Authorization"] = f"Bearer {key}"
        place = f"{url}/channels/orders/consumers/verifier"
        form = {"url": consumer.url("/hook"), "event_types": ["verified"]}
        registered = http.put(place, json=form, timeout=60)
        assert registered.status_code == 201, registered.text
        published = http.post(
            f"{url}/channels/orders/messages",
            data=b'{"total": 12.50}',
            headers={"Hookstation-Event-Type": "verified", "Content-Type": "application/json"},
            timeout=60,
        )
        assert published.status_code == 202, published.text
    (request,) = consumer.wait_for(1, path="/hook", timeout=60)
    return registered.json()["secret"], request


def check_verifiers(secret: str, genuine: Request) -> None:
    """Both snippets accept the genuine request and refuse changed, foreign and old ones."""
    headers, body, forged = dict(genuine.headers), genuine.body, genuine.body + b" "
    other = "whsec_" + base64.b64encode(b"another secret of 32 bytes length").decode()

    receive = snippet(README, secret)["receive"]
    assert receive(headers, body) == {"total": 12.5}
    with pytest.raises(Exception, match="No matching signature found"):
        receive(headers, forged)
    with pytest.raises(Exception, match="No matching signature found"):
        snippet(README, other)["receive"](headers, body)

    is_genuine = snippet(ROOT / "docs/api.md", secret)["is_genuine"]
    old = headers | {"webhook-timestamp": str(int(time.time()) - 301)}
    assert is_genuine(secret, headers, body)
    assert not is_genuine(secret, headers, forged)
    assert not is_genuine(other, headers, body)
    assert not is_genuine(secret, old, body)


def snippet(page: Path, secret: str) -> dict[str, Any]:
    """Run the page's Python block that defines a function; return its names."""
    (code,) = (it for it in transcripts.blocks(text_of(page), "python") if "\ndef " in it)
    defined: dict[str, Any] = {}
    exec(code.replace("whsec_...", secret), defined)  # noqa: S102 - our own documentation
    return defined


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
