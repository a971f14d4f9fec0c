"""Group commit with real threads: each caller gets its own result, whatever others get."""

import random
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from channels_app.database import raw
from channels_app.database.transactions import GroupCommit, LeaderLost
from tests.integration.channels_app.calls import PATIENCE_S, Call
from tests.support.waiting import until


class Storage:
    """Work that can be held, and that records the groups it was given."""

    def __init__(self) -> None:
        self.groups: list[list[Any]] = []
        self.threads: list[threading.Thread] = []
        self.open = threading.Event()
        self.open.set()
        self.failure: BaseException | None = None

    def work(self, orders: Sequence[Any]) -> list[str]:
        self.groups.append(list(orders))
        self.threads.append(threading.current_thread())
        assert self.open.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        if "bad" in orders:
            raise ValueError("bad")
        return [f"stored {order}" for order in orders]


@pytest.fixture
def storage() -> Storage:
    return Storage()


def make(storage: Storage, max_orders: int = 100, **options: Any) -> GroupCommit[Any, Any]:
    return GroupCommit(storage.work, max_orders=max_orders, **({"max_size": 1000} | options))


def queue(
    group: GroupCommit[Any, Any], storage: Storage, orders: Sequence[Any], size: int = 1
) -> list[Call]:
    """Start a leader, held at its work, and a waiting caller for each of the other orders."""
    storage.open.clear()
    calls = [Call(partial(group.run, orders[0], size))]
    until(lambda: storage.groups, "the leader works")
    for number, order in enumerate(orders[1:], start=1):
        calls.append(Call(partial(group.run, order, size)))
        until(lambda: len(group._waiting) == number, f"{order} waits")  # noqa: B023 (called at once)
    return calls


def test_a_single_request_does_not_wait_for_a_group(storage: Storage) -> None:
    group = make(storage)

    assert group.run("a", 1) == "stored a"
    assert group.run("b", 1) == "stored b"
    assert storage.groups == [["a"], ["b"]]


def test_requests_during_a_commit_form_the_next_group(storage: Storage) -> None:
    calls = queue(make(storage), storage, "abcde")
    storage.open.set()

    assert [call.outcome() for call in calls] == [f"stored {order}" for order in "abcde"]
    assert storage.groups == [["a"], ["b", "c", "d", "e"]]


def test_the_leader_works_for_its_own_group_only(storage: Storage) -> None:
    calls = queue(make(storage), storage, "abc")
    storage.open.set()
    for call in calls:
        call.outcome()

    assert storage.threads == [calls[0].thread, calls[1].thread]


def test_groups_have_a_largest_number(storage: Storage) -> None:
    calls = queue(make(storage, max_orders=3), storage, "abcdefgh")
    storage.open.set()

    assert [call.outcome() for call in calls] == [f"stored {order}" for order in "abcdefgh"]
    assert [len(some) for some in storage.groups] == [1, 3, 3, 1]


def test_groups_have_a_maximum_size_but_one_request_may_exceed_it(storage: Storage) -> None:
    calls = queue(make(storage, max_size=25), storage, "abcdef", size=10)
    storage.open.set()
    for call in calls:
        call.outcome()

    assert [len(some) for some in storage.groups] == [1, 2, 2, 1]
    assert make(storage, max_size=25).run("z", 26) == "stored z"


def test_a_failed_message_does_not_fail_others_in_its_group(storage: Storage) -> None:
    calls = queue(make(storage), storage, ["a", "b", "bad", "c"])
    storage.open.set()
    outcomes = [call.outcome() for call in calls]

    assert outcomes[:2] + outcomes[3:] == ["stored a", "stored b", "stored c"]
    assert isinstance(outcomes[2], ValueError)
    assert storage.groups[1] == ["b", "bad", "c"]
    assert sorted(storage.groups[2:]) == [["b"], ["bad"], ["c"]]
    assert set(storage.threads[2:]) == {call.thread for call in calls[1:]}


def test_an_error_of_the_whole_group_is_not_retried(storage: Storage) -> None:
    calls = queue(make(storage), storage, "abcd")
    storage.failure = raw.dialect.lost("away")
    storage.open.set()
    errors = [call.outcome() for call in calls]

    assert [str(error) for error in errors] == [str(storage.failure)] * 4
    # Each caller raises its own exception: a traceback belongs to one thread.
    assert len({id(error) for error in errors[1:]}) == 3
    assert storage.groups == [["a"], ["b", "c", "d"]]


@pytest.mark.trap("two timeouts in a row")
def test_waiting_for_a_stuck_commit_is_bounded(storage: Storage) -> None:
    """Later callers would otherwise wait for the stuck commit and then for their own."""
    group = make(storage, max_wait_s=0.1)
    (first,) = queue(group, storage, "a")
    behind = [Call(partial(group.run, order, 1)) for order in "bc"]
    errors = [call.outcome() for call in behind]

    assert all(raw.dialect.is_away(error) for error in errors), errors
    assert storage.groups == [["a"]]
    storage.open.set()
    assert first.outcome() == "stored a"
    assert group.run("d", 1) == "stored d"
    assert storage.groups == [["a"], ["d"]]


def test_an_interrupted_leader_leaves_no_request_waiting(storage: Storage) -> None:
    group = make(storage, max_orders=3)
    calls = queue(group, storage, "abcde")
    storage.failure = SystemExit()
    storage.open.set()
    errors = [call.outcome() for call in calls]

    assert [type(error) for error in errors] == [
        *(SystemExit, SystemExit, LeaderLost, LeaderLost, SystemExit),
    ]
    storage.failure = None
    assert group.run("f", 1) == "stored f"


def test_results_are_never_mixed_up() -> None:
    seen: list[int] = []

    def work(orders: Sequence[int]) -> list[int]:
        seen.append(len(orders))
        if len(seen) == 1:
            until(lambda: len(group._waiting) > 1, "two callers wait for the first commit")
        if any(order % 7 == 0 for order in orders):
            raise ValueError(next(order for order in orders if order % 7 == 0))
        return [order * 2 for order in orders]

    group = GroupCommit(work, max_orders=5, max_size=100)
    wrong: list[object] = []

    def call(first: int) -> None:
        for order in range(first, first + 50):
            try:
                result: object = group.run(order, random.randint(1, 40))
            except ValueError as error:
                result = error.args[0]
            if result != (order if order % 7 == 0 else order * 2):
                wrong.append((order, result))

    for one in [Call(partial(call, n * 1000)) for n in range(12)]:
        assert one.outcome() is None

    assert not wrong
    assert max(seen) > 1
