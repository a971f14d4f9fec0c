"""``manage.py doctor``: every fault has its sentence, its remedy and the right exit code."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.core.management import call_command
from django.utils import timezone

from channels_app.conf import keyring
from delivery.models import PumpSlot

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _good_sqlite(settings: LazySettings) -> None:
    settings.SILENCED_SYSTEM_CHECKS = [*settings.SILENCED_SYSTEM_CHECKS, "hookstation.W002"]


def doctor(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("doctor", *arguments, stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    return 0, out.getvalue()


def start_a_pump() -> None:
    # Ahead, so that a busy machine does not make the heartbeat too old for the check.
    now = timezone.now() + timedelta(minutes=5)
    PumpSlot.objects.create(
        cluster="c",
        ordinal=0,
        generation=1,
        host="h",
        pid=os.getpid(),
        key_ids=",".join(keyring().ids),
        started_at=now,
        heartbeat_at=now + timedelta(hours=1),
    )


def test_doctor_without_findings_succeeds() -> None:
    start_a_pump()

    status, said = doctor()

    assert status == 0
    assert said.endswith("\nAll is well: no problem with settings, database, workers and data.\n")
    assert len(said.splitlines()) == 3


def test_doctor_without_pumps_names_the_command_to_start() -> None:
    status, said = doctor()

    assert status == 1
    assert "error    No pump had a heartbeat" in said
    assert "\n         -> Start `python manage.py broker`" in said
    assert said.endswith("1 error, 0 warnings.\n")
    assert max(len(line) for line in said.splitlines()) <= 80


def test_doctor_lists_errors_before_warnings(settings: LazySettings) -> None:
    start_a_pump()
    settings.SECRET_KEY = "short"
    settings.DEBUG = True

    status, said = doctor()

    assert status == 1
    assert said.index("error    SECRET_KEY has 5 characters") < said.index("warning  HOOKSTATION_")
    assert said.endswith("1 error, 1 warning.\n"), said


def test_doctor_with_only_warnings_succeeds(settings: LazySettings) -> None:
    start_a_pump()
    settings.DEBUG = True

    status, said = doctor()

    assert status == 0
    assert said.endswith("Nothing is broken. 1 warning.\n")


def test_json_is_for_programs() -> None:
    status, said = doctor("--json")

    document = json.loads(said)
    (finding,) = document["findings"]
    assert status == 1
    assert document["status"] == "error"
    assert finding.keys() == {"level", "id", "sentence", "hint"}
    assert finding["id"] == "pumps"

    start_a_pump()
    status, said = doctor("--json")
    assert (status, json.loads(said)["status"]) == (0, "ok")


def doctor_process(data: Path, **environment: str) -> str:
    """Return what the command prints in a process that has no other configuration."""
    done = subprocess.run(
        [sys.executable, "manage.py", "doctor"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOOKSTATION_DATA_DIR": str(data), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow("starts a process")
def test_doctor_works_without_a_database(tmp_path: Path) -> None:
    said = doctor_process(tmp_path, DATABASE_URL="sqlite:////nowhere/x.sqlite3")

    assert "error    SECRET_KEY is not set" in said
    assert "error    The database does not answer: " in said


@pytest.mark.slow("starts a process")
def test_doctor_reports_missing_tables_once(tmp_path: Path) -> None:
    said = doctor_process(tmp_path, SECRET_KEY="0123456789" * 6)

    assert "migrations are not applied: contenttypes.0001_initial," in said
    assert "-> Run `python manage.py migrate`." in said
    assert "1 error" in said
