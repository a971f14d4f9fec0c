"""Profile the throughput of one consumer; bench/profile.py makes the tables."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench import cpu, inject, profile, tables
from bench.inject.sitecustomize import FOLDER
from bench.stage import Row, Stage, Values

TIMES = 2
"""Multiple of the throughput's messages, since samples are few."""


def look(stage: Stage) -> Values:
    """Return CPU time per message by part of the code, and the database's counters."""
    with _watched(stage) as folder:
        consumers = stage.consumers("take")
        stage.run(stage.sizes.warm_up, consumers)
        groups = _groups(stage)
        counted, before, start = _counters(stage), stage.look(), _each(groups)
        sizes = {pid: _size(folder, pid) for pid in groups}
        flow = stage.run(stage.sizes.messages * TIMES, consumers)
        used = stage.look().since(before)
        spent, end = _each(groups).since(start), _counters(stage)
        samples = {pid: _samples(folder, pid, sizes[pid]) for pid in groups}
    microseconds = 1e6 / flow.deliveries
    values: Values = {"profile.database": used["database"] * microseconds}
    workers = [pid for pid in samples if groups[pid] == "worker"]
    each_s = profile.interval_s(
        [samples[pid] for pid in workers], sum(spent[pid] for pid in workers)
    )
    for pid, text in samples.items():
        for room, seconds in profile.shares(text, spent[pid], each_s).items():
            key = f"profile.{groups[pid]}.{room}"
            values[key] = values.get(key, 0.0) + seconds * microseconds
    values["profile.total"] = sum(values.values())
    for name, count in end.items():
        values[f"profile.{name}"] = (count - counted[name]) / flow.deliveries
    return values


@contextmanager
def _watched(stage: Stage) -> Iterator[Path]:
    """Run the broker with sampling into a folder; afterwards restart it without."""
    broker = tables.ours(stage)
    with tempfile.TemporaryDirectory(prefix="hookstation-profile-") as folder:
        usual = dict(broker.environment)
        broker.stop()
        broker.environment |= {
            FOLDER: folder,
            "PYTHONPATH": str(Path(inject.__file__).parent),
            # Without a timeout, since the signal would interrupt waits of MariaDB's client that
            # have one.
            "DATABASE_URL": f"{stage.database.url}?read_timeout=0",
        }
        broker.start()
        try:
            yield Path(folder)
        finally:
            broker.stop()
            broker.environment = usual
            broker.start()


def _groups(stage: Stage) -> dict[str, str]:
    """Return the group of each process of the broker."""
    found = stage.broker.processes()
    return {str(pid): group for group, pids in found.items() for pid in pids}


def _each(pids: Iterable[str]) -> cpu.Snapshot:
    """Return CPU time of each process separately."""
    return cpu.look({pid: [int(pid)] for pid in pids})


def _size(folder: Path, pid: str) -> int:
    path = folder / pid
    return path.stat().st_size if path.exists() else 0


def _samples(folder: Path, pid: str, start: int) -> str:
    path = folder / pid
    return path.read_bytes()[start:].decode(errors="replace") if path.exists() else ""


def _counters(stage: Stage) -> Mapping[str, int]:
    with tables.cursor(stage) as server:
        server.execute("SHOW GLOBAL STATUS")
        return profile.counters(dict(server.fetchall()))


ROWS = (Row("profile", (), look, on_sqlite=False, ours_alone=True),)
