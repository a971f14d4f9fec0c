"""What is measured: figures with their targets, and how a value is judged."""

from dataclasses import dataclass
from statistics import median
from typing import Literal

Verdict = Literal["aim", "must", "missed", "unknown", "lost"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. Targets are in the figure's own unit, unless they are `relative`."""

    key: str
    """``row.name``; under this name values are kept."""
    title: str
    unit: str
    must: float | None = None
    aim: float | None = None
    is_more_better: bool = False
    is_relative: bool = False
    """The targets are multiples of what another broker reached in the same run."""
    reference: str = ""
    """The other broker's figure that a relative target multiplies; its own when empty."""
    digits: int = 1

    @property
    def compares_with(self) -> str:
        """Key of the other broker's figure that stands beside this one."""
        return self.reference or self.key

    def judge(self, value: float, beside: float | None = None) -> Verdict:
        """How a value stands to the targets; `beside` is what the other broker reached."""
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
    """The values of one figure in several runs, in the order of the runs."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one, or the mean of the two in the middle."""
        return median(self.values)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values (0 to 1) do not exceed.

    Raises ValueError without values.
    """
    if not values:
        raise ValueError("There are no values.")
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, int(rank) - 1)]
