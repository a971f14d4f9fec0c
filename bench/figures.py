"""Define figures with their targets, and judge measured values."""

from dataclasses import dataclass
from statistics import median
from typing import Literal

Verdict = Literal["aim", "must", "missed", "unknown", "lost"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. Targets have the figure's unit, unless they are `relative`."""

    key: str
    """``row.name``; values are stored under this name."""
    title: str
    unit: str
    must: float | None = None
    aim: float | None = None
    is_more_better: bool = False
    is_relative: bool = False
    """The targets are multiples of another broker's value in the same run."""
    reference: str = ""
    """The other broker's figure that a relative target multiplies; the same figure when empty."""
    digits: int = 1

    @property
    def compares_with(self) -> str:
        """Key of the other broker's figure to compare with."""
        return self.reference or self.key

    def judge(self, value: float, beside: float | None = None) -> Verdict:
        """Judge a value by the targets; `beside` is the other broker's value."""
        if self.must is None:
            return "unknown"
        if self.is_relative:
            if not beside:
                return "unknown"
            value /= beside
        sign = 1 if self.is_more_better else -1
        if self.aim is not None and sign * value >= sign * self.aim:
            return "aim"
        return "must" if sign * value >= sign * self.must else "missed"


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one figure in the order of the runs."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median."""
        return median(self.values)


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values (0 to 1) do not exceed.

    Raises ValueError without values.
    """
    if not values:
        raise ValueError("There are no values.")
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, int(rank) - 1)]
