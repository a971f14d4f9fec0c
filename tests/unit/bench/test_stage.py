"""Benchmark figures: how a value is judged against its targets."""

import pytest

from bench.stage import Figure, Verdict, percentile

LATENCY = Figure("p50", "p50", "ms", must=5.0, aim=2.5)
RATE = Figure("rate", "rate", "/s", 2.5, 4.0, better="more", reference="one.rate")


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(2.5, "aim"), (2.6, "must"), (5.0, "must"), (5.1, "missed"), (0.0, "aim")],
)
def test_less_is_better_unless_said_otherwise(value: float, verdict: Verdict) -> None:
    assert LATENCY.judge(value) == verdict


@pytest.mark.parametrize(
    ("value", "verdict"), [(4_000, "aim"), (3_999, "must"), (2_500, "must"), (2_499, "missed")]
)
def test_a_relative_target_is_a_multiple_of_the_other_broker(
    value: float, verdict: Verdict
) -> None:
    assert RATE.judge(value, other=1_000) == verdict


def test_a_relative_target_without_another_broker_says_nothing() -> None:
    assert RATE.judge(1e9) == "unknown"
    assert RATE.judge(1e9, other=0) == "unknown"


def test_a_figure_without_an_aim_is_judged_by_what_it_must_reach() -> None:
    ratio = Figure("ratio", "order", "x", must=0.9, better="more")
    assert (ratio.judge(0.96), ratio.judge(0.88)) == ("must", "missed")


def test_a_figure_without_targets_is_not_judged() -> None:
    assert Figure("memory", "memory", "MiB").judge(1.0) == "unknown"


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_percentile_is_the_value_that_the_share_does_not_exceed(share: float, value: int) -> None:
    assert percentile([float(number) for number in range(100, 0, -1)], share) == value


def test_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


@pytest.mark.parametrize(
    ("unit", "digits", "text"),
    [
        ("/s", None, "1,234"),
        ("x of alone", None, "1,234.50"),
        ("ms", None, "1,234.5"),
        ("", 1, "1,234.5"),
    ],
)
def test_a_value_has_the_decimals_of_its_unit(unit: str, digits: int | None, text: str) -> None:
    assert Figure("x", "x", unit, digits=digits).format(1234.5) == text
