"""The profiler: running processes write stacks, and each stack is assigned to a component."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.internal import sampling
from bench.scenarios import profile
from tests.unit.bench.test_results import result

BURN = """
import os, threading, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
def doze(): time.sleep(0.5)
threading.Thread(target=doze).start()
burn(0.3)
if os.fork() == 0:
    burn(0.3)
    os._exit(0)
os.wait()
"""


def stack(*frames: tuple[str, int]) -> str:
    """Return a stack as faulthandler writes it, innermost frame first."""
    lines = [f'  File "{file}", line {number} in work' for file, number in frames]
    return "\n".join([f"Current thread 0x1 {profile.SAMPLE}", *lines, ""])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["/x/MySQLdb/cursors.py", "/b/channels_app/ingest/accept.py"], "driver"),
        (["/usr/lib/python3.11/json/encoder.py", "/b/channels_app/ingest/accept.py"], "accept"),
        (["/b/delivery/queue/settle.py", "/b/delivery/pump/pump.py"], "settle"),
        (["/b/delivery/pump/pump.py", "/x/django_q/worker.py"], "pump"),
        (["/x/rest_framework/views.py", "/b/broker_site/wsgi.py"], "rest_framework"),
        (["/usr/lib/python3.11/threading.py"], "other"),
        ([], "unseen"),
    ],
)
def test_a_stack_belongs_to_the_innermost_part_that_is_known(
    files: list[str], expected: str
) -> None:
    assert profile.part_of(stack(*[(file, 1) for file in files])) == expected


def test_what_c_code_does_counts_for_libcurl_where_our_line_calls_it(tmp_path: Path) -> None:
    folder = tmp_path / "delivery" / "transport"
    folder.mkdir(parents=True)
    path = folder / "sender.py"
    path.write_text("self._multi.socket_action(fd, 0)\nself._done.append(answer)\n")

    assert profile.part_of(stack((str(path), 1))) == "libcurl"
    assert profile.part_of(stack((str(path), 2))) == "sender"


def test_time_without_samples_is_unseen() -> None:
    text = stack(("/x/MySQLdb/cursors.py", 1)) * 3 + stack()
    found = profile.shares(text, 0.1, 0.02)

    assert found == pytest.approx({"driver": 0.06, "unseen": 0.04})
    assert profile.interval_s([text, text], 0.4) == pytest.approx(0.05)


def test_running_code_is_noted_and_waiting_code_is_not(tmp_path: Path) -> None:
    environment = {**os.environ, **sampling.environment(tmp_path)}
    subprocess.run([sys.executable, "-c", BURN], env=environment, check=True, timeout=300)

    texts = [path.read_text() for path in tmp_path.iterdir() if path.is_file()]
    assert len(texts) == 2, "the process and its child"
    for text in texts:
        assert text.count("in burn") >= 10
        assert text.count("in doze") <= 1


@pytest.mark.seed("S3-17")
def test_the_tables_name_parts_and_counters() -> None:
    found = result()
    assert profile.markdown([found]) == ""
    found.values |= {
        "profile.web.view": 60.0,
        "profile.worker.libcurl": 20.0,
        "profile.worker.metrics": 0.1,
        "profile.database": 120.0,
        "profile.total": 200.0,
        "profile.Com_commit": 0.25,
    }
    text = profile.markdown([found])

    assert "| our view | 60 µs |  | 30% |" in text
    assert "| libcurl |  | 20 µs | 10% |" in text
    assert "metrics" not in text
    assert "| COMMIT | 0.25 |" in text
