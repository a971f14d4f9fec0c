"""One broker, one consumer and one browser for the whole folder."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.db import connection
from playwright.sync_api import Browser, StorageState, expect, sync_playwright

from tests.browser import backlogs, person
from tests.browser.person import GUEST, OPERATOR, OWNER, Open, Person
from tests.browser.tours import House
from tests.support import broker as processes
from tests.support.broker import Broker
from tests.support.receiver import Receiver

RUN = """
import runpy, sys, django
django.setup()
runpy.run_module(f"tests.browser.{sys.argv.pop(1)}", run_name="__main__")
"""
"""Runs a module of this folder after Django's setup, as it imports models."""
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The shell has the engine without windows, menus and tabs: 298 instead of 518 s of CPU time."""
Sessions = dict[str, StorageState]
"""Cookies by the person's name."""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests without Chromium, and in the run on MariaDB."""
    reason = ""
    if CHROMIUM is None:
        reason = "needs a browser: sudo apt-get install chromium-headless-shell chromium-common"
    elif connection.vendor != "sqlite":
        reason = "what a browser sees does not depend on the database: once is enough"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="package")
def consumer() -> Iterator[Receiver]:
    """The consumer that the broker delivers to."""
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory, consumer: Receiver) -> Iterator[Broker]:
    """A running broker with the rows of `seed` and `backlogs`."""
    folder = tmp_path_factory.mktemp("browser")
    with processes.fresh_database(folder) as url:
        made = Broker(folder, url, EMAIL_URL=f"filemail:///{folder / 'mail'}")
        seeded = write(made, "seed", consumer.url(""))
        made.http.headers["Authorization"] = f"Bearer {seeded.split()[-1]}"
        try:
            made.start()
            backlogs.fill(made)
            yield made
        finally:
            made.end()


@pytest.fixture(scope="package")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker without any messages, which lets everyone sign up."""
    folder = tmp_path_factory.mktemp("bare")
    with processes.fresh_database(folder) as url:
        mail = f"filemail:///{folder / 'mail'}"
        made = Broker(folder, url, EMAIL_URL=mail, HOOKSTATION_SIGNUP="open")
        write(made, "bare")
        try:
            made.start()
            yield made
        finally:
            made.end()


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium; nothing is downloaded."""
    expect.set_options(person.PATIENCE_MS)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def sessions(broker: Broker, chromium: Browser) -> Sessions:
    """The cookies of all people who sign in."""
    found = {}
    for name in (OPERATOR, OWNER, GUEST):
        with person.window(chromium, base_of(broker)) as somebody:
            somebody.sign_in(name, "/admin/" if name == OPERATOR else "/portal/")
            found[name] = somebody.page.context.storage_state()
    return found


@pytest.fixture
def open_window(broker: Broker, chromium: Browser) -> Iterator[Open]:
    """Open windows; check at the end that no fault was recorded in them."""
    with ExitStack() as opened:
        yield lambda **options: opened.enter_context(
            person.window(chromium, base_of(broker), **options)
        )


@pytest.fixture
def house(
    open_window: Open,
    broker: Broker,
    consumer: Receiver,
    sessions: Sessions,
    bare: Broker,
) -> House:
    """What the tours need."""
    return House(open_window, broker, consumer, sessions, bare)


@pytest.fixture
def operator(open_window: Open, sessions: Sessions) -> Person:
    """A signed-in superuser."""
    return open_window(storage_state=sessions[OPERATOR])


def write(broker: Broker, module: str, *arguments: str) -> str:
    """Run a module of this folder on a broker's database; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, module, *arguments],
        cwd=processes.ROOT,
        env=broker.environment | {"DJANGO_SETTINGS_MODULE": "broker_site.settings"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def base_of(broker: Broker) -> str:
    """The URL of the broker's pages."""
    return f"http://127.0.0.1:{broker.port}"
