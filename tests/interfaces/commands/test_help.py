"""Every command has a help text that fits 80 columns and needs no configuration."""

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand

from delivery.management.base import Command as BaseOfOurs

ROOT = Path(__file__).resolve().parents[3]
OURS = sorted(
    (name, str(app)) for name, app in get_commands().items() if app in {"broker_site", "delivery"}
)


def help_of(name: str, app: str, monkeypatch: pytest.MonkeyPatch) -> tuple[BaseCommand, str]:
    monkeypatch.setenv("COLUMNS", "80")
    command = load_command_class(app, name)
    return command, command.create_parser("manage.py", name).format_help()


def test_every_command_is_tested() -> None:
    folders = [ROOT / app / "management" / "commands" for app in ("broker_site", "delivery")]
    files = {module.name for module in pkgutil.iter_modules([str(folder) for folder in folders])}

    assert {name for name, _ in OURS} == files
    assert {"apply", "demo", "create_api_key", "publish", "receiver"} <= files


@pytest.mark.parametrize(("name", "app"), OURS)
def test_help_is_readable(name: str, app: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command, text = help_of(name, app, monkeypatch)

    assert len(command.help) > 40
    assert [line for line in text.splitlines() if len(line) > 80] == []
    if isinstance(command, BaseOfOurs):
        assert "--pythonpath" not in text
        assert f"examples:\n  python manage.py {name}" in text


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that has no other configuration."""
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow("starts a process")
def test_help_needs_no_settings(tmp_path: Path) -> None:
    done = manage("demo", "--help", HOOKSTATION_DATA_DIR=str(tmp_path / "data"))

    assert (done.returncode, done.stderr) == (0, "")
    assert "Run the whole broker on this machine" in done.stdout
    assert not (tmp_path / "data" / "demo").exists()


def test_a_variable_that_cannot_be_used_is_named_without_a_traceback(tmp_path: Path) -> None:
    done = manage("check", HOOKSTATION_DATA_DIR=str(tmp_path), HOOKSTATION_PUMPS="many")

    assert done.returncode == 1
    assert done.stderr.startswith("Error: HOOKSTATION_PUMPS='many' cannot be used: ")
    assert len(done.stderr.splitlines()) == 1
