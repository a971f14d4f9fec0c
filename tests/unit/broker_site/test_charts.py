"""Charts: round axis marks, lines with gaps where data is missing, text for screen readers."""

import pytest

from broker_site.console.charts import HEIGHT, WIDTH, ChartSeries, linear, logarithmic


def words(value: float) -> str:
    return f"{value:g}"


def test_the_largest_value_has_a_round_number_above_it() -> None:
    chart = linear(
        "Flow",
        [ChartSeries("one", "t", [0, 30, 7]), ChartSeries("two", "t", [None, 12, 1])],
        [],
        words,
    )

    assert chart.marks == ["50", "25", "0"]
    assert chart.lines[0].path == f"M0.0 {HEIGHT:.1f} L300.0 64.0 L600.0 137.6"
    assert chart.grid == "M0 0.0h600M0 80.0h600M0 160.0h600"
    assert chart.summary == "Flow. Last: one 7, two 1."


def test_a_chart_without_values_is_flat() -> None:
    chart = linear("Flow", [ChartSeries("one", "t", [0, 0])], [], words)

    assert chart.marks == ["2", "1", "0"]
    assert chart.lines[0].path == f"M0.0 {HEIGHT:.1f} L{WIDTH:.1f} {HEIGHT:.1f}"


def test_a_chart_line_has_gaps_for_missing_values() -> None:
    chart = logarithmic("Time", [ChartSeries("p50", "t", [10.0, None, 1000.0])], [], words)

    assert chart.marks == ["1000", "100", "10"]
    assert chart.lines[0].path == f"M0.0 {HEIGHT:.1f}h0 M{WIDTH:.1f} 0.0h0"


@pytest.mark.parametrize("values", [[], [None, None], [0.0], [0.01, 5e9]])
def test_odd_values_can_be_drawn(values: list[float | None]) -> None:
    for draw in (linear, logarithmic):
        chart = draw("Odd", [ChartSeries("one", "t", values)], [], words)
        assert "nan" not in chart.lines[0].path
        assert len(chart.marks) >= 2
