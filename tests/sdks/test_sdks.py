"""Unmodified clients of Amazon SQS against a real broker: `make test-sdks`."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from pytest_django import DjangoDbBlocker

from tests.sdks import playing
from tests.sdks.playing import CLIENTS, SDKS, Suite
from tests.support.broker import ROOT, running
from tests.support.conformance import Result
from tests.support.door import Door

pytestmark = pytest.mark.e2e

PAGE = ROOT / "docs/clients/sqs-conformance.md"
Results = dict[str, Result]


@pytest.fixture(scope="module")
def suite(
    tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker
) -> Iterator[Suite]:
    with django_db_blocker.unblock(), running(tmp_path_factory.mktemp("sdks")) as broker:
        suite = Suite(Door.of(broker))
        yield suite
        suite.close()


@pytest.fixture(scope="module")
def results(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """Return a cached function that runs every check of a client."""
    folder = tmp_path_factory.mktemp("programs")

    @cache
    def made(name: str) -> Results:
        return suite.play_all(name) if name in SDKS else suite.run_program(name, folder)

    return made


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_passes_every_check(name: str, results: Callable[[str], Results]) -> None:
    if not playing.is_installed(name):
        pytest.skip("not installed: `make test-sdks` says why")
    wrong = {check: str(it) for check, it in results(name).items() if it.colour != "green"}
    assert wrong == {}


def test_the_tables_in_the_documentation_are_current(
    suite: Suite, results: Callable[[str], Results], request: pytest.FixtureRequest
) -> None:
    """``--force-regen`` writes the page from this run: another one would take too long."""
    if missing := [name for name in CLIENTS if not playing.is_installed(name)]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    text = playing.page(suite, {name: results(name) for name in CLIENTS})
    if request.config.getoption("force_regen"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text
