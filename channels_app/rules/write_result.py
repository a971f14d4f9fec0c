"""The result of writing a configured row, as a value."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WriteResult(Generic[T]):
    """A row after a step wrote it, or found that nothing was to be written."""

    row: T
    created: bool = False
    """It was not there before, or had been retired."""
    changed: bool = False
    """Something was written; the same values twice change nothing."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Secrets made on the way, in clear: shown once, to this caller, and never again."""
