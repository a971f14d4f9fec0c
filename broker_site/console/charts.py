"""Draw line charts on the server, as plain SVG with a table beside it, without scripts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 600, 160
"""Size of the drawing in its own units; the page scales it."""

Value = float | None
Show = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One series of values, oldest first; None where there is no value."""

    name: str
    tone: str
    """CSS class ``hs-line-...``: a colour, and a pattern for those who cannot see colours."""
    values: Sequence[Value]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A line as an SVG path."""

    name: str
    tone: str
    path: str
    last: str
    """The newest value as text."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The context of the template."""

    title: str
    lines: list[Drawn]
    marks: list[str]
    """Labels at the left edge, from top to bottom."""
    times: list[str]
    """Labels below, from oldest to newest."""
    summary: str
    """Alternative text for screen readers."""

    @property
    def grid(self) -> str:
        """Path of the horizontal grid lines, one per mark."""
        step = HEIGHT / (len(self.marks) - 1)
        return "".join(f"M0 {place * step:.1f}h{WIDTH}" for place in range(len(self.marks)))


def linear(title: str, lines: Sequence[ChartSeries], times: list[str], show: Show) -> Chart:
    """A chart from 0 to a round number above the largest value."""
    top = _round_up(max((value for line in lines for value in line.values if value), default=1.0))
    marks = [show(top), show(top / 2), show(0)]
    return _chart(title, lines, times, show, marks, lambda value: value / top)


def logarithmic(title: str, lines: Sequence[ChartSeries], times: list[str], show: Show) -> Chart:
    """A chart in powers of ten, so that small and large values are visible together."""
    positive = [value for line in lines for value in line.values if value]
    low = math.floor(math.log10(max(min(positive, default=1.0), 0.1)))
    high = max(low + 1, math.ceil(math.log10(max(positive, default=10.0))))
    marks = [show(10.0**power) for power in range(high, low - 1, -1)]
    return _chart(
        title,
        lines,
        times,
        show,
        marks,
        lambda value: (math.log10(max(value, 10.0**low)) - low) / (high - low),
    )


def amount(value: float) -> str:
    """Format a number; as an integer from a thousand on."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _round_up(value: float) -> float:
    """Round up to 1, 2, 5, 10, 20 and so on; at least 2, whose half is an integer."""
    power = 10.0 ** math.floor(math.log10(max(value, 1.0)))
    return max(2.0, next(power * step for step in (1, 2, 5, 10) if power * step >= value))


def _chart(
    title: str,
    lines: Sequence[ChartSeries],
    times: list[str],
    show: Show,
    marks: list[str],
    height: Callable[[float], float],
) -> Chart:
    drawn = [
        Drawn(line.name, line.tone, _path(line.values, height), _last(line.values, show))
        for line in lines
    ]
    last_values = ", ".join(f"{line.name} {line.last}" for line in drawn)
    return Chart(title, drawn, marks, times, f"{title}. Last: {last_values}.")


def _path(values: Sequence[Value], height: Callable[[float], float]) -> str:
    """An SVG path, interrupted where a value is missing."""
    step = WIDTH / max(1, len(values) - 1)
    runs: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            runs.append([])
            continue
        y = HEIGHT * (1 - min(1.0, max(0.0, height(value))))
        runs[-1].append(f"{place * step:.1f} {y:.1f}")
    # A single point becomes a dot: a line of length 0 with round caps.
    return " ".join(f"M{' L'.join(run)}" + "h0" * (len(run) == 1) for run in runs if run)


def _last(values: Sequence[Value], show: Show) -> str:
    value = values[-1] if values else None
    return "-" if value is None else show(value)
