"""The wheel, installed in an empty environment and started in an empty folder."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from broker_site import __version__
from tests.support.broker import ROOT, Broker, wait_until
from tests.support.receiver import Receiver

UV = Path(sys.executable).with_name("uv")
PYTHON = os.environ.get("HOOKSTATION_WHEEL_PYTHON", sys.executable)
"""The interpreter it is installed for: `make test-pythons` names others."""
MAX_S = 600

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=MAX_S)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `hookstation`, installed in a new environment."""
    place = tmp_path_factory.mktemp("environment")
    python = place / "bin/python"
    for words in (
        ["venv", "--python", PYTHON, str(place)],
        ["pip", "install", "--python", str(python), str(wheel)],
    ):
        subprocess.run([UV, *words], check=True, capture_output=True, timeout=MAX_S)
    return place / "bin/hookstation"


@pytest.fixture
def broker(installed: Path, tmp_path: Path) -> Iterator[Broker]:
    """An installation without this checkout's files, packages and environment variables."""
    made = Broker(tmp_path, "")
    for name in ("DATABASE_URL", "HOOKSTATION_DATA_DIR"):
        del made.environment[name]
    made.program = [str(installed)]
    made.workplace = tmp_path / "empty"
    made.workplace.mkdir()
    yield made
    made.end()


def test_wheel_contains_the_package_under_one_top_level_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    info = f"hookstation-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"hookstation", info}
    inside = {name.removeprefix("hookstation/broker/") for name in names}
    for folder, ending in (
        ("templates", ".html"),
        ("static/hookstation", ".css"),
        ("delivery/migrations", ".py"),
        ("channels_app/migrations", ".py"),
        ("pipeline/contract", ".py"),
        ("pipeline/jobs", ".py"),
    ):
        kept = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob(f"*{ending}")}
        assert kept
        assert kept - inside == set()
    assert f"{info}/licenses/LICENSE" in names
    assert [name for name in inside if name.startswith(("tests", "bench", "data"))] == []


def test_installed_wheel_names_its_command_and_delivers_in_an_empty_folder(
    broker: Broker, receiver: Receiver
) -> None:
    assert broker.manage("--version").strip() == __version__
    assert "delete_channel" in broker.manage()
    assert list(broker.workplace.iterdir()) == [], "who only asks for help makes nothing"
    assert broker.manage("repair_counters", "--help").startswith(
        "usage: hookstation repair_counters "
    )

    broker.manage("migrate", "--verbosity", "0")
    broker.use(broker.create_key())
    hint = hint_without_workers(broker)
    assert hint.startswith("Start `hookstation broker` or `hookstation worker`")

    broker.start()
    broker.call("PUT", "/channels/orders", 201, json={})
    registration = {"url": receiver.url("/billing")}
    broker.call("PUT", "/channels/orders/consumers/billing", 201, json=registration)
    broker.call("POST", "/channels/orders/messages", 202, json={"id": 1})

    wait_until(lambda: len(receiver.requests()) == 1, 60.0, "it was not delivered", broker.log)
    assert receiver.requests()[0].body == b'{"id": 1}'
    page = broker.http.get(f"http://127.0.0.1:{broker.port}/accounts/login/", timeout=300)
    assert page.status_code == 200
    sheet = broker.http.get(
        f"http://127.0.0.1:{broker.port}/static/admin/css/base.css", timeout=300
    )
    assert sheet.status_code == 200
    assert broker.stop() == 0
    assert [path.name for path in broker.workplace.iterdir()] == ["data"]


def hint_without_workers(broker: Broker) -> str:
    """Run the web server alone; return what /readyz says about pumps."""
    ready: dict[str, Any] = {}

    def is_answered() -> bool:
        with suppress(requests.RequestException):
            url = f"http://127.0.0.1:{broker.port}/readyz"
            ready.update(requests.get(url, timeout=2).json())
        return bool(ready)

    command = [*broker.program, "broker", "--role", "web", "--bind", f"127.0.0.1:{broker.port}"]
    with (broker.folder / "broker.log").open("ab") as log:
        broker.process = subprocess.Popen(
            command,
            cwd=broker.workplace,
            env=broker.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    wait_until(is_answered, 300.0, "no web server answers", broker.log)
    assert broker.stop() == 0
    return str(ready["checks"]["pumps"]["hint"])
