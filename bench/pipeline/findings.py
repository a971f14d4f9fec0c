"""Store the findings of one session as JSON, for tables made later."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from bench.adapters import BenchError
from bench.machine import Machine
from bench.pipeline.delivering import Spell


@dataclass(slots=True)
class Answer:
    """The result of one question at one size."""

    question: str
    attempts: int
    """Attempts in the tables."""
    rows: int
    """Rows that the question covers."""
    seconds: float = 0.0
    database_cpu_s: float = 0.0
    driver_bytes: int = 0
    jvm_bytes: int = 0
    workers_bytes: int = 0
    mariadb_s: float | None = None
    mariadb_cpu_s: float | None = None
    duckdb_s: float | None = None
    duckdb_bytes: int | None = None
    cpu_s: float = 0.0
    """CPU seconds of the job's processes."""
    duckdb_cpu_s: float = 0.0
    failures: list[str] = field(default_factory=list)
    strangers: float = 0.0
    """Share of the machine that other work took."""


@dataclass(slots=True)
class Findings:
    """All findings of one session."""

    at: str
    """RFC 3339, UTC."""
    machine: Machine
    settings: str
    answers: list[Answer] = field(default_factory=list)
    spells: list[Spell] = field(default_factory=list)
    """Latencies of messages beside jobs."""
    deliver_attempts: int = 0
    """Attempts in the tables during these."""
    failures: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> Path:
        """Save as JSON; file names sort by time."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.at.replace(':', '').replace('-', '')}-pipeline.json"
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load from JSON. Raises BenchError."""
        try:
            found: dict[str, Any] = json.loads(path.read_text())
            lists = {
                "machine": Machine(**found["machine"]),
                "answers": [Answer(**answer) for answer in found["answers"]],
                "spells": [Spell(**spell) for spell in found["spells"]],
            }
            return cls(**{**found, **lists})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise BenchError(f"{path} holds no findings about the pipeline: {error}") from None
