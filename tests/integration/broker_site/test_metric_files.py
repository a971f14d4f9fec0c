"""Metric files: counters of processes add up, despite dead processes and interrupted merges."""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count as numbers
from pathlib import Path

import pytest
from django.db import connection
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, values
from prometheus_client.values import MultiProcessValue

from broker_site.observability import metric_files
from broker_site.observability.metric_files import Files

pytestmark = pytest.mark.skipif(connection.vendor == "mysql", reason="needs no database")
DEAD = numbers(1 << 22)
"""Process ids above the largest of Linux: no process has them."""


def count(folder: Path, amount: float) -> int:
    """Leave the files of a process that counted and ended; return its process id."""
    pid = next(DEAD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
        patch.setattr(values, "ValueClass", kind := MultiProcessValue(lambda: pid))
        registry = CollectorRegistry()
        Counter("t_total", "Things.", ["kind"], registry=registry).labels("a").inc(amount)
        Histogram("t_seconds", "Time.", buckets=(1, 5), registry=registry).observe(amount)
        kind.close_all_files()
    return pid


def shown(folder: Path, *others: Path) -> dict[str, float]:
    """Return the samples as a scrape shows them."""
    registry = CollectorRegistry()
    registry.register(Files(folder, others))
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_metrics_of_processes_are_summed(tmp_path: Path) -> None:
    count(tmp_path, 2)
    count(tmp_path, 3)

    found = shown(tmp_path)

    assert found['t_total{kind="a"}'] == 5
    assert found['t_seconds_bucket{le="+Inf"}'] == 2
    assert found['t_seconds_bucket{le="5.0"}'] == 2
    assert found["t_seconds_sum"] == 5


@pytest.mark.trap("a restart resets the failure count")
def test_dead_processes_stay_in_the_sum_however_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_files, "KEEP", 2)
    for amount in (1, 2, 3):
        count(tmp_path, amount)

    assert shown(tmp_path)['t_total{kind="a"}'] == 6
    count(tmp_path, 4)
    assert shown(tmp_path)['t_total{kind="a"}'] == 10

    assert list(tmp_path.glob("*.db")) == []
    assert len(list((tmp_path / "dead").glob("*.db"))) <= 4
    assert shown(tmp_path)["t_seconds_count"] == 4


def test_a_running_process_keeps_its_metrics_file(tmp_path: Path) -> None:
    mine = tmp_path / f"counter_{count(tmp_path, 1)}.db"
    own = tmp_path / f"counter_{os.getpid()}.db"
    mine.rename(own)

    assert shown(tmp_path)['t_total{kind="a"}'] == 1
    assert own.exists()


@pytest.mark.parametrize("steps", range(1, 9))
def test_an_interrupted_merge_neither_loses_nor_doubles_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(metric_files, "KEEP", 1)
    for amount in (1, 2):
        count(tmp_path, amount)
    with monkeypatch.context() as broken:
        _break_after(broken, steps)
        with suppress(KeyboardInterrupt):
            shown(tmp_path)

    assert shown(tmp_path)['t_total{kind="a"}'] == 3
    assert shown(tmp_path)["t_seconds_count"] == 2


def _break_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Interrupt the process at the n-th change of the folder."""
    done = 0

    def dying(change: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **kwargs: object) -> object:
            nonlocal done
            done += 1
            if done == steps:
                raise KeyboardInterrupt
            return change(*args, **kwargs)

        return wrapped

    monkeypatch.setattr(Path, "rename", dying(Path.rename))
    monkeypatch.setattr(Path, "replace", dying(Path.replace))
    monkeypatch.setattr(Path, "touch", dying(Path.touch))


def test_a_damaged_file_does_not_spoil_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A separate logger, so that libraries used by other tests cannot change its configuration.
    own = logging.Logger("metric files", logging.INFO)
    own.addHandler(caplog.handler)
    monkeypatch.setattr(metric_files, "log", own)
    count(tmp_path, 2)
    (tmp_path / f"counter_{os.getpid()}.db").write_bytes(b"\xff\x7f\x00\x00" + b"\x01" * 40)

    assert shown(tmp_path)['t_total{kind="a"}'] == 2
    assert "cannot be read" in caplog.text


def test_another_hosts_folder_is_read_and_left_alone(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    count(here, 1)
    count(there, 10)

    assert shown(here, there)['t_total{kind="a"}'] == 11
    assert len(list(there.glob("counter_*.db"))) == 1
