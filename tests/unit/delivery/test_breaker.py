"""The circuit breaker: opens for a failing consumer, probes less and less often, then closes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.core.breaker import (
    CLOSED,
    OPEN,
    SLOW_CAP_S,
    Circuit,
    after_failure,
    after_refusal,
    after_success,
    may_send,
    slowed,
)
from tests.support.properties import quick

NOW = 1_700_000_000.0
THRESHOLD, BASE_S, CAP_S = 3, 5.0, 300.0


def fail(circuit: Circuit, now: float = NOW) -> Circuit:
    return after_failure(circuit, now, threshold=THRESHOLD, base_s=BASE_S, cap_s=CAP_S)


def failed(times: int) -> Circuit:
    circuit = Circuit()
    for _ in range(times):
        circuit = fail(circuit)
    return circuit


def test_a_few_failures_change_nothing() -> None:
    circuit = failed(THRESHOLD - 1)
    assert circuit.state == CLOSED
    assert circuit.failing_since == NOW
    assert may_send(circuit, NOW) == "yes"


def test_failures_in_a_row_open_the_circuit_until_the_probe() -> None:
    circuit = failed(THRESHOLD)
    assert circuit.state == OPEN
    assert may_send(circuit, NOW) == "no"
    assert may_send(circuit, NOW + BASE_S - 0.001) == "no"
    assert may_send(circuit, NOW + BASE_S) == "probe"


def test_a_success_between_failures_starts_the_count_again() -> None:
    circuit = fail(after_success(failed(THRESHOLD - 1), NOW))
    assert circuit.consecutive_failures == 1
    assert circuit.state == CLOSED


@pytest.mark.trap("refused messages hold up a working consumer")
@pytest.mark.parametrize("times", [1, THRESHOLD, THRESHOLD + 3])
def test_a_refusal_closes_the_circuit_but_is_a_failure(times: int) -> None:
    circuit = after_refusal(failed(times), NOW + 1)
    assert circuit == Circuit(consecutive_failures=times + 1, failing_since=NOW)
    assert may_send(circuit, NOW + 1) == "yes"
    again = fail(fail(circuit))
    assert (again.state, fail(again).next_probe_at) == (CLOSED, NOW + BASE_S)


def test_a_refusal_does_not_end_a_requested_pause() -> None:
    circuit = after_refusal(slowed(failed(THRESHOLD), NOW, 30.0), NOW)
    assert may_send(circuit, NOW + 29) == "no"
    assert may_send(circuit, NOW + 30) == "yes"


def test_a_stored_open_circuit_is_reopened_by_the_first_failed_probe() -> None:
    stored = replace(failed(THRESHOLD), outage_count=0)
    circuit = fail(stored, NOW + BASE_S)
    assert (circuit.state, circuit.next_probe_at) == (OPEN, NOW + 3 * BASE_S)


def test_requests_in_flight_do_not_delay_the_probe() -> None:
    circuit = failed(THRESHOLD)
    late = fail(circuit, NOW + 4)
    assert late.next_probe_at == circuit.next_probe_at
    assert late.opened_count == 1


def test_each_failed_probe_doubles_the_wait_up_to_the_cap() -> None:
    circuit, now, waits = failed(THRESHOLD), NOW, []
    for _ in range(40):
        assert circuit.next_probe_at is not None
        waits.append(circuit.next_probe_at - now)
        now = circuit.next_probe_at
        circuit = fail(circuit, now)
    assert waits[:7] == [5, 10, 20, 40, 80, 160, 300]
    assert set(waits[6:]) == {CAP_S}
    assert circuit.failing_since == NOW


def test_a_success_resets_the_circuit() -> None:
    circuit = slowed(failed(THRESHOLD + 5), NOW, 30.0)
    assert after_success(circuit, NOW) == Circuit()
    assert may_send(after_success(circuit, NOW), NOW) == "yes"


def test_a_slowed_consumer_pauses_without_opening_the_circuit() -> None:
    circuit = slowed(Circuit(), NOW, retry_after=30.0)
    assert circuit.state == CLOSED
    assert may_send(circuit, NOW + 29.999) == "no"
    assert may_send(circuit, NOW + 30) == "yes"


@pytest.mark.parametrize(("wish", "pause"), [(0.0, 0), (1.0, 1), (60.0, 60), (86_400.0, 60)])
def test_retry_after_pauses_a_consumer_up_to_a_minute(wish: float, pause: float) -> None:
    assert slowed(Circuit(), NOW, wish).slow_until == NOW + pause


def test_without_retry_after_each_pause_doubles_up_to_a_minute() -> None:
    circuit, now, pauses = Circuit(), NOW, []
    for _ in range(40):
        circuit = slowed(circuit, now, None)
        assert circuit.slow_until is not None
        pauses.append(circuit.slow_until - now)
        now = circuit.slow_until
    assert pauses[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert set(pauses[6:]) == {SLOW_CAP_S}


def test_responses_in_flight_do_not_double_the_pause() -> None:
    circuit = slowed(Circuit(), NOW, None)
    assert slowed(circuit, NOW + 0.5, None) == circuit
    longer = slowed(circuit, NOW + 0.5, 20.0)
    assert longer.slow_until == NOW + 20.5
    assert slowed(longer, NOW + 0.6, 1.0).slow_until == NOW + 20.5
    assert longer.slow_count == 1


def test_a_pause_also_delays_the_probe() -> None:
    circuit = slowed(failed(THRESHOLD), NOW, 30.0)
    assert may_send(circuit, NOW + BASE_S) == "no"
    assert may_send(circuit, NOW + 30) == "probe"


EVENTS = st.lists(
    st.tuples(st.sampled_from(["success", "failure", "refusal", "slow"]), st.floats(0, 400)),
    max_size=60,
)


@quick
@given(EVENTS, st.none() | st.floats(0, 86_400))
def test_an_open_circuit_is_probed_within_the_cap(
    events: list[tuple[str, float]], wish: float | None
) -> None:
    circuit, now = Circuit(), NOW
    for event, gap in events:
        now += gap
        if event == "success":
            circuit = after_success(circuit, now)
            assert may_send(circuit, now) == "yes"
        elif event == "failure":
            circuit = fail(circuit, now)
        elif event == "refusal":
            circuit = after_refusal(circuit, now)
        else:
            circuit = slowed(circuit, now, wish)
        assert may_send(circuit, now + max(CAP_S, SLOW_CAP_S) + 0.001) != "no"
        assert (circuit.state == CLOSED) == (circuit.outage_count < THRESHOLD)
