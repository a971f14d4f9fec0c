"""Provide realistic webhook bodies, from a file if one is given, else generated."""

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path

COUNT = 329


@dataclass(frozen=True, slots=True)
class Sample:
    """A body with the name of its event."""

    event: str
    body: bytes


def corpus() -> list[Sample]:
    """Return bodies of HOOKSTATION_TEST_BODIES (JSON lines: event, body), or generated ones."""
    path = os.environ.get("HOOKSTATION_TEST_BODIES")
    if not path:
        return _made_up()
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line.strip()]
    return [Sample(row["event"], row["body"].encode()) for row in rows]


def _made_up() -> list[Sample]:
    """Return JSON of 1 to 27 kB with all kinds of characters, the same in each run."""
    dice = random.Random(329)
    alphabet = 'abc "\\/\n\té✓漢😀\u2028\x7f'
    samples = []
    for number in range(COUNT):
        text = "".join(dice.choices(alphabet, k=dice.randint(300, 9000)))
        spaced = {"separators": (", ", ": ")} if number % 2 else {"separators": (",", ":")}
        body = json.dumps({"n": number, "text": text}, ensure_ascii=number % 3 == 0, **spaced)  # type: ignore[arg-type]  # separators
        samples.append(Sample(f"made.up_{number % 7}", body.encode("utf-8", "surrogatepass")))
    return samples
