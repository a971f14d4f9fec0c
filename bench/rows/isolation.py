"""Measure a healthy consumer beside a hanging and beside a failing one."""

from bench.figures import Figure, percentile
from bench.rows.latency import SLOW
from bench.sink import Manner
from bench.stage import Row, Stage, Values

TIMEOUT_MS = 2_000
"""Short enough that hanging requests time out, are retried and open the circuit."""
SHARES = (("p50", 0.5), ("p99", 0.99))


def isolate(stage: Stage) -> Values:
    """Measure a healthy consumer alone, beside a hanging one, and beside one that responds 500."""
    alone = _beside(stage, None)
    values = {f"isolation.alone_{name}": alone[name] for name, _ in SHARES}
    for manner in ("hang", "fail"):
        found = _beside(stage, "hang" if manner == "hang" else "fail")
        for name, _ in SHARES:
            values[f"isolation.{manner}_{name}_ms"] = found[name]
            values[f"isolation.{manner}_{name}"] = found[name] / alone[name]
    return values


def _beside(stage: Stage, neighbour: Manner | None) -> dict[str, float]:
    manners: list[Manner] = ["take"] if neighbour is None else ["take", neighbour]
    healthy, *_ = stage.consumers(*manners, timeout_ms=TIMEOUT_MS)
    stage.run(SLOW, [healthy], rate=SLOW)
    flow = stage.run(int(SLOW * stage.sizes.latency_s), [healthy], rate=SLOW)
    latencies = flow.latencies_ms(healthy)
    return {name: percentile(latencies, share) for name, share in SHARES}


def _figures() -> tuple[Figure, ...]:
    figures = [
        Figure(f"isolation.alone_{name}", f"healthy consumer alone, {name}", "ms", digits=2)
        for name, _ in SHARES
    ]
    for manner, neighbour in (("hang", "a hanging one"), ("fail", "a failing one")):
        for name, _ in SHARES:
            title = f"healthy consumer's {name} beside {neighbour}, {SLOW} messages/s"
            key = f"isolation.{manner}_{name}"
            figures += [
                Figure(key, title, "x of alone", must=1.5, aim=1.1, digits=2),
                Figure(f"{key}_ms", "- the same", "ms", digits=2),
            ]
    return tuple(figures)


ROWS = (Row("isolation", _figures(), isolate),)
