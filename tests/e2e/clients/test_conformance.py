"""Every client passes the scenarios of clients/conformance against a real broker."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support import conformance, streams
from tests.support.broker import Broker
from tests.support.conformance import DRIVERS, FAKETIME, FOLDER, ROOT, SCENARIOS, Result, Suite

pytestmark = pytest.mark.e2e

PAGE = ROOT / "docs/clients/conformance.md"
NOT_COMPILED = [client for client in DRIVERS if DRIVERS[client]["command"][0] == "python"]


@pytest.fixture(scope="module")
def suite(broker: Broker) -> Iterator[Suite]:
    suite = Suite(broker)
    yield suite
    suite.close()
    streams.wait_for_grpc(broker)  # scenarios kill the broker


@pytest.fixture(scope="module")
def lacking() -> Mapping[str, str]:
    """Clients that this machine cannot build, each with the reason."""
    return conformance.build_drivers()


@pytest.fixture(scope="module")
def played(suite: Suite, lacking: Mapping[str, str]) -> Callable[[str], dict[str, Result]]:
    """Run every scenario with a client; the results are cached."""
    drivers = {client: DRIVERS[client] for client in DRIVERS if client not in lacking}
    return cache(lambda client: suite.run(client, drivers))


@pytest.mark.parametrize("client", DRIVERS)
def test_a_client_passes_every_scenario(
    client: str, played: Callable[[str], dict[str, Result]], lacking: Mapping[str, str]
) -> None:
    if client in lacking:
        pytest.skip(lacking[client])
    results = played(client)
    wrong = {name: str(it) for name, it in results.items() if it.colour == "red"}
    assert wrong == {}
    left_out = {name for name, it in results.items() if it.colour == "skipped"}
    assert left_out <= (set() if FAKETIME else {"clock skew"})


@pytest.mark.smoke
@pytest.mark.parametrize("client", NOT_COMPILED)
def test_a_client_that_is_not_compiled_publishes_and_receives(client: str, suite: Suite) -> None:
    (scenario,) = [one for one in SCENARIOS if one["name"] == "publish and receive"]
    assert suite.play(f"smoke-{client}", DRIVERS[client], scenario) == Result("green")


def test_the_matrix_in_the_documentation_is_current(
    played: Callable[[str], dict[str, Result]], lacking: Mapping[str, str], file_regression: Any
) -> None:
    if lacking:
        pytest.skip(f"the page has every client: {lacking}")
    matrix = {client: dict(played(client)) for client in DRIVERS}
    if not FAKETIME:
        # The page was generated on a machine with faketime.
        for results in matrix.values():
            results["clock skew"] = Result("green")
    text = conformance.page(matrix)
    file_regression.check(text, fullpath=PAGE, encoding="utf-8")


def test_scenarios_have_names_of_their_own() -> None:
    names = [scenario["name"] for scenario in SCENARIOS]
    assert len(names) == len(set(names))
    assert all(re.search(r"[.]$", scenario["about"]) for scenario in SCENARIOS)


BROKEN = {
    "lost answer": """
real = driver.http.request
def request(method, url, **options):
    if "Idempotency-Key" in options.get("headers", {}):
        options["headers"] = options["headers"] | {"Idempotency-Key": str(driver.uuid.uuid4())}
    return real(method, url, **options)
driver.http.request = request
""",
    "lost request": "driver.TRIES = 1",
    "busy broker": "driver.time.sleep = lambda seconds: None",
    "paging": """
def listed(path, limit):
    return driver.call("GET", path, params={"limit": limit}).json()["items"]
driver.listed = listed
""",
    "replay window": "driver.TOLERANCE_S = 86_400",
    "verify": "driver.hmac.compare_digest = lambda expected, given: True",
    "error codes": """
real = driver.Refused
driver.Refused = lambda **members: real(**members | {"code": "error"})
""",
    "any bytes": """
driver.bytes_of = lambda body, encoded: driver.base64.b64decode(encoded or "").decode(
    errors="replace").encode() if encoded else (body or "").encode()
""",
    "clock skew": """
def publish(channel, body, deliver_in):
    at = str(round((driver.time.time() + deliver_in) * 1000))
    said = {"Hookstation-Deliver-At": at}
    return driver.call("POST", f"/channels/{channel}/messages", headers=said, data=body).json()
driver.OPERATIONS["publish"] = publish
""",
    "ordering": """
real = driver.OPERATIONS["publish"]
driver.OPERATIONS["publish"] = lambda ordering_key=None, **words: real(**words)
""",
}
"""A fault of a driver, by the scenario that must detect it."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_driver_is_seen(name: str, suite: Suite, tmp_path: Path) -> None:
    program = tmp_path / "driver.py"
    program.write_text(
        f"import requests_driver as driver\n{BROKEN[name]}\n"
        "driver.serve('broken', driver.OPERATIONS)\n"
    )
    description = {
        "command": ["python", str(program)],
        "environment": {"PYTHONPATH": str(FOLDER / "drivers")},
    }
    scenario = next(one for one in SCENARIOS if one["name"] == name)
    found = suite.play(f"broken-{name}", description, scenario)
    assert found.colour == ("skipped" if name == "clock skew" and not FAKETIME else "red"), found
