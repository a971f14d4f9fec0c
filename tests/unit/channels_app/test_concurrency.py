"""The concurrency limit: how many slots each owner gets, and how long a request waits for one."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from channels_app.ingest import concurrency
from channels_app.ingest.concurrency import TURN_S, ConcurrencyLimit, ShortTurns


def fill(some: ConcurrencyLimit, owner: str) -> int:
    """Take every slot that this owner may have; return their number."""
    count = 0
    while some.take(owner, waits=False):
        count += 1
    return count


@pytest.mark.parametrize(
    ("count", "shares"),
    [(20, [10, 5, 3, 1, 1, 0]), (4, [2, 1, 1, 0]), (2, [1, 1, 0]), (1, [1, 0])],
)
def test_each_holder_leaves_as_many_places_as_it_takes(count: int, shares: list[int]) -> None:
    some = ConcurrencyLimit(count)
    assert [fill(some, f"owner {number}") for number in range(len(shares))] == shares


def test_a_released_place_can_be_taken() -> None:
    some = ConcurrencyLimit(16)
    fill(some, "slow")
    for _ in range(8):
        some.give_back("slow")
    assert fill(some, "another") == 8


def test_a_holder_that_releases_no_places_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests are also refused at once when no slot was released for a long time."""
    monkeypatch.setattr(concurrency, "MAX_WAIT_S", 0.0)
    monkeypatch.setattr(concurrency, "PAUSES_S", (600.0,))
    some = ConcurrencyLimit(2)
    fill(some, "slow")
    assert not some.take("slow")
    fill(some, "another")
    assert not some.take("a third one")


def test_a_busy_limit_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "MAX_WAIT_S", 60.0)
    monkeypatch.setattr(concurrency, "PAUSES_S", (0.001,) * 60_000)
    some = ConcurrencyLimit(2)
    fill(some, "fast")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(some.take, "fast")
        some.give_back("fast")
        assert waiting.result()


def test_waiting_for_a_place_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pytest.approx(0.25, abs=0.01) == concurrency.MAX_WAIT_S
    monkeypatch.setattr(concurrency, "MAX_WAIT_S", 60.0)
    some = ConcurrencyLimit(2)
    fill(some, "slow")
    assert not some.take("slow")


def test_turns_are_short_until_the_last_long_request_ends() -> None:
    usual, turns = sys.getswitchinterval(), ShortTurns()
    with turns:
        with turns:
            pass
        assert sys.getswitchinterval() == pytest.approx(TURN_S)
    assert sys.getswitchinterval() == pytest.approx(usual)
    assert usual > 2 * TURN_S
