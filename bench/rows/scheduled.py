"""Compare claims with and without a large number of scheduled messages."""

from statistics import median

from bench import tables
from bench.figures import Figure
from bench.rows.scale import WORK, in_turns
from bench.stage import Row, Stage, Values

NAME = "scheduled_tables"
MEASURED = ("claim", "discover")
"""Parts of a pump's work that read the rows of one consumer by their time."""


def scheduled(stage: Stage) -> Values:
    """Create scheduled messages beside due ones, then measure without the broker."""
    rows = stage.sizes.rows // 10
    stage.broker.stop()
    with tables.small(stage) as small, tables.small(stage, NAME, scheduled=rows) as piled:
        found = in_turns(stage, {"without": small, "beside": piled})
    stage.broker.start()
    values: Values = {"scheduled.rows": rows}
    for work in MEASURED:
        without, beside = (median(each[f"{work}_ms"] for each in found[name]) for name in found)
        reads = median(each[f"{work}_reads"] for each in found["beside"])
        values |= {
            f"scheduled.{work}": beside / without,
            f"scheduled.{work}_ms": beside,
            f"scheduled.{work}_ms_without": without,
            f"scheduled.{work}_reads": reads,
        }
    return values


def _figures() -> tuple[Figure, ...]:
    figures = [Figure("scheduled.rows", "messages whose time comes tomorrow", "", digits=0)]
    for work in MEASURED:
        key = f"scheduled.{work}"
        figures += [
            Figure(key, f"{WORK[work]}: beside them", "x without", must=2.0, aim=1.2, digits=2),
            Figure(f"{key}_ms", "- beside them", "ms", digits=2),
            Figure(f"{key}_ms_without", "- without", "ms", digits=2),
            Figure(f"{key}_reads", "- rows read for each one, beside them", "", digits=1),
        ]
    return tuple(figures)


ROWS = (Row("scheduled", _figures(), scheduled, on_sqlite=False, ours_alone=True),)
