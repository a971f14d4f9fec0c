"""Profile: one consumer's throughput once more, watched; bench/profile.py makes the tables."""

from bench import cpu, profile, tables
from bench.adapters import BenchError
from bench.stage import Row, Stage, Values

TIMES = 2
"""As many messages as for the throughput, so often: samples are few."""
LEAST = 0.02
"""Share of the CPU time of all processes from which on one is watched."""


def look(stage: Stage) -> Values:
    """CPU time of a message by room of the house and by the database's own counters."""
    consumers = stage.consumers("take")
    busy = _busy(stage, consumers)
    threads = {pid: profile.thread_cpu(pid) for pid in busy}
    counted, before = _counters(stage), stage.look()
    with profile.watching(list(busy)) as raw:
        flow = stage.run(stage.sizes.messages * TIMES, consumers)
        used, end = stage.look().since(before), _counters(stage)
        spent = {
            pid: {
                thread: now - threads[pid].get(thread, 0.0)
                for thread, now in profile.thread_cpu(pid).items()
            }
            for pid in busy
        }
    values: Values = {"profile.database": used["database"] / flow.deliveries * 1e6}
    for pid, group in busy.items():
        for room, seconds in profile.shares(raw[pid], spent[pid]).items():
            key = f"profile.{group}.{room}"
            values[key] = values.get(key, 0.0) + seconds / flow.deliveries * 1e6
    values["profile.total"] = sum(values.values())
    for name, count in end.items():
        values[f"profile.{name}"] = (count - counted[name]) / flow.deliveries
    return values


def _busy(stage: Stage, consumers: list[int]) -> dict[int, str]:
    """The processes that do the work, with their groups."""
    groups = stage.broker.processes()
    watched = {pid: group for group in profile.GROUPS for pid in groups[group]}
    before = cpu.look({str(pid): [pid] for pid in watched})
    stage.run(stage.sizes.warm_up, consumers)
    used = cpu.look({str(pid): [pid] for pid in watched}).since(before)
    found = {
        pid: group for pid, group in watched.items() if used[str(pid)] >= LEAST * sum(used.values())
    }
    if not found:
        raise BenchError("No process of the broker did anything.")
    return found


def _counters(stage: Stage) -> dict[str, int]:
    with tables.cursor(stage) as server:
        server.execute("SHOW GLOBAL STATUS")
        return profile.counters(dict(server.fetchall()))


ROWS = (Row("profile", (), look, on_sqlite=False, ours_alone=True),)
