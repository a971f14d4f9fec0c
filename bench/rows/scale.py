"""Compare the pump's own statements in large and in small tables."""

from collections.abc import Mapping
from statistics import median

from bench import inside, tables
from bench.figures import Figure
from bench.stage import Row, Stage, Values
from bench.tables import Variables

SAMPLES = 30
ROUNDS = 3
"""Both sides take turns, so that other load affects both."""
WORK = {
    "claim": "claim of 100 rows",
    "discover": "look for each consumer's next due row",
    "dispatch": "fan-out of 100 messages",
}


def scale(stage: Stage) -> Values:
    """Create a backlog, and one at a broken consumer, then measure without the broker."""
    rows = stage.sizes.rows
    stage.broker.stop()
    tables.fill(stage, finished=rows, waiting=rows // 10, failing=rows // 100)
    with tables.small(stage) as small:
        found = in_turns(stage, {"small": small, "large": tables.ours(stage).environment})
    stage.broker.start()
    values: Values = {}
    for work in WORK:
        for what in ("ms", "reads"):
            in_small, in_large = (
                median(each[f"{work}_{what}"] for each in found[name]) for name in found
            )
            values[f"scale.{work}_{what}"] = in_large
            values[f"scale.{work}_{what}_small"] = in_small
        values[f"scale.{work}"] = values[f"scale.{work}_ms"] / values[f"scale.{work}_ms_small"]
    return values


def in_turns(stage: Stage, sides: Mapping[str, Variables]) -> dict[str, list[Values]]:
    """Return the cost of the statements in the tables of each side, round by round."""
    found: dict[str, list[Values]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, variables in sides.items():
            found[name].append(inside.run("claims", variables, SAMPLES, tell=stage.tell))
    return found


def _figures() -> tuple[Figure, ...]:
    figures: list[Figure] = []
    for work, title in WORK.items():
        key = f"scale.{work}"
        figures += [
            Figure(key, f"{title}: large tables", "x of small ones", must=2.0, aim=1.2, digits=2),
            Figure(f"{key}_ms", "- in large tables", "ms", digits=2),
            Figure(f"{key}_ms_small", "- in small tables", "ms", digits=2),
            Figure(f"{key}_reads", "- rows read for each one, large tables", "", digits=1),
            Figure(f"{key}_reads_small", "- rows read for each one, small tables", "", digits=1),
        ]
    return tuple(figures)


ROWS = (Row("scale", _figures(), scale, on_sqlite=False, ours_alone=True),)
