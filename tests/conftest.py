"""Fixtures and rules that the whole suite shares."""

import signal
from collections.abc import Iterator
from itertools import count
from typing import Any

import hypothesis.core
import pytest
from django.core.cache import caches
from django.db import connection
from pytest_django import DjangoDbBlocker
from xdist.scheduler.loadscope import LoadScopeScheduling

from channels_app.ingest import limits, storage
from channels_app.registry import cache as config_cache_module
from channels_app.registry import data_encryption
from channels_app.registry.cache import config_cache
from delivery.processes.wakeups import wakeup_sender
from delivery.pull import receiving
from tests.support import properties, resetting
from tests.support.receiver import Receiver

properties.register_profiles()  # before pytest chooses one from the command line

SHARING = "tests/crash/"
"""The folder whose files each share one running broker, because starting it takes long."""
FOLDERS = ("tests/e2e/clients/", "tests/e2e/grpc/", "tests/e2e/hostile/")
"""Folders of which all files share one."""
INDEXES = "tests/integration/indexes/"
"""Two of these tests at a time would wait for each other: each waits until the server has purged
deleted rows, and an open transaction of the other delays that."""


class TogetherOrAlone(LoadScopeScheduling):
    """Keep tests that share something on one worker; spread all others, or all other files."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        for folder in (*FOLDERS, INDEXES):
            if path.startswith(folder):
                return folder
        is_file = self.config.getoption("dist") == "loadfile"
        shares = path.startswith(SHARING) or path.endswith("_broker.py")
        return path if is_file or shares else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return our scheduler when xdist distributes by load or by file."""
    is_ours = config.getoption("dist") in ("load", "loadfile")
    return TogetherOrAlone(config, log) if is_ours else None


SLOW_S = 2.0
"""A slower test is listed, unless its folder starts processes, Spark or a browser. Seconds."""
STARTS_PROCESSES = ("tests/e2e/", "tests/crash/", "tests/pipeline/", "tests/browser/")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give Hypothesis the seed that pytest-randomly prints."""
    # A background shell job ignores SIGINT, and the processes that tests start would inherit that.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.core.global_force_seed = config.getoption("randomly_seed", None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List slow tests, each with the reason that its marker gives."""
    slow = [
        (report.duration, report.nodeid, dict(report.user_properties).get("slow"))
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
        and report.when == "call"
        and report.duration > SLOW_S
        and not report.nodeid.startswith(STARTS_PROCESSES)
    ]
    if slow:
        terminalreporter.section(f"slower than {SLOW_S:g} s")
    for seconds, name, reason in sorted(slow, reverse=True):
        reason = reason or "no reason given: make it faster, or mark it slow(reason)"
        terminalreporter.write_line(f"{seconds:6.2f} s  {name}  ({reason})")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``mariadb`` on SQLite, and report the reasons of slow tests."""
    for item in items:
        if marker := item.get_closest_marker("slow"):
            # Test reports carry these from the xdist workers to the main process.
            item.user_properties.append(("slow", marker.args[0]))
    if connection.vendor == "mysql":
        return
    for item in items:
        if item.get_closest_marker("mariadb"):
            item.add_marker(pytest.mark.skip(reason="runs on MariaDB"))


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    """The test database, whose tables are emptied faster than by Django."""
    with django_db_blocker.unblock():
        resetting.install()


@pytest.fixture(autouse=True)
def _fresh_config_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Empty all caches before each test, and check for new configuration at every read."""
    monkeypatch.setattr(config_cache_module, "CHECK_S", 0.0)
    # On a slow machine a test would query the keys once more than on another one.
    monkeypatch.setattr(data_encryption, "FRESH_S", float("inf"))
    config_cache.__init__()  # type: ignore[misc]  # resets it
    limits.forget()
    storage.forget()
    data_encryption.forget()
    caches["process"].clear()
    receiving._noted.clear()
    monkeypatch.setattr(receiving, "_turns", count(1))
    yield
    wakeup_sender.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A real consumer on its own port."""
    with Receiver() as consumer:
        yield consumer
