"""Metrics updated in batches have the same values as metrics updated one at a time."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, CollectorRegistry

from delivery import metrics
from delivery.core.lifecycle import DeliveryState
from delivery.core.outcome import Outcome
from delivery.metrics import Ended, Histogram
from tests.support.properties import quick

BOUNDS = (0.001, 0.5, 1, 2.5)


def histogram() -> tuple[Histogram, CollectorRegistry]:
    registry = CollectorRegistry()
    return Histogram("h", "For tests.", buckets=BOUNDS, registry=registry), registry


def numbers(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("le", "")): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


# Multiples of 1/8 add up exactly in any order.
AMOUNTS = st.sampled_from([*BOUNDS[1:], -0.5, 0.0, 0.125, 0.625, 2.625, 1e9])


@quick
@given(st.lists(st.lists(AMOUNTS, max_size=20), max_size=4))
def test_bulk_increments_equal_single_ones(rounds: list[list[float]]) -> None:
    at_once, one_by_one = histogram(), histogram()
    for amounts in rounds:
        at_once[0].observe_all(amounts)
        for amount in amounts:
            one_by_one[0].observe(amount)

    assert numbers(at_once[1]) == numbers(one_by_one[1])
    total = sum(max(0.0, amount) for amounts in rounds for amount in amounts)
    assert numbers(at_once[1])["h_sum", ""] == total


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_ends_are_counted_by_outcome_and_state() -> None:
    names = [
        ("hookstation_attempts_total", {"outcome": "delivered"}),
        ("hookstation_attempts_total", {"outcome": "server_error"}),
        ("hookstation_deliveries_total", {"state": "delivered"}),
        ("hookstation_deliveries_total", {"state": "dead"}),
        ("hookstation_deliveries_total", {"state": "queued"}),
        ("hookstation_attempt_duration_seconds_count", {}),
        ("hookstation_delivery_latency_seconds_count", {}),
        ("hookstation_delivery_latency_seconds_sum", {}),
    ]
    before = [value(name, **labels) for name, labels in names]

    metrics.count_attempts(
        [
            (Outcome.DELIVERED, 0.25),
            (Outcome.SERVER_ERROR, 0.25),
            (Outcome.DELIVERED, 0.25),
            (Outcome.SERVER_ERROR, 0.25),
        ]
    )
    metrics.count_deliveries(
        [
            Ended(DeliveryState.DELIVERED, 2.0),
            Ended(DeliveryState.DELIVERED, 4.0),
            Ended(DeliveryState.DEAD, 100.0),
        ]
    )

    after = [value(name, **labels) for name, labels in names]
    risen = [round(new - old, 6) for old, new in zip(before, after, strict=True)]
    assert risen == [2, 2, 2, 1, 0, 4, 2, 6.0]
