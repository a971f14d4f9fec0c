"""The concurrency limit: how many slots each owner gets, and how long a request waits for one."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from channels_app.api import concurrency
from channels_app.api.concurrency import ConcurrencyLimit


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
def test_each_leaves_as_many_as_it_takes(count: int, shares: list[int]) -> None:
    some = ConcurrencyLimit(count)
    assert [fill(some, f"owner {number}") for number in range(len(shares))] == shares


def test_what_is_given_back_can_be_taken_by_anybody() -> None:
    some = ConcurrencyLimit(16)
    fill(some, "slow")
    for _ in range(8):
        some.give_back("slow")
    assert fill(some, "another") == 8


def test_who_sits_on_his_places_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are also refused at once when no slot was released for a long time."""
    monkeypatch.setattr(concurrency, "MAX_WAIT_S", 0.0)
    monkeypatch.setattr(concurrency, "PAUSES_S", (600.0,))
    some = ConcurrencyLimit(2)
    fill(some, "slow")
    assert not some.take("slow")
    fill(some, "another")
    assert not some.take("a third one")


def test_while_places_change_hands_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "MAX_WAIT_S", 60.0)
    monkeypatch.setattr(concurrency, "PAUSES_S", (0.001,) * 60_000)
    some = ConcurrencyLimit(2)
    fill(some, "fast")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(some.take, "fast")
        some.give_back("fast")
        assert waiting.result()


def test_nobody_waits_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pytest.approx(0.25, abs=0.01) == concurrency.MAX_WAIT_S
    monkeypatch.setattr(concurrency, "MAX_WAIT_S", 60.0)
    some = ConcurrencyLimit(2)
    fill(some, "slow")
    assert not some.take("slow")
