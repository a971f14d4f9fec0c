"""Kill a web process while pull consumers receive and settle."""

from typing import Any

import pytest

from tests.crash.place import ONCE, PERHAPS, THRICE, TWICE, Crash, Place, rows

pytestmark = pytest.mark.e2e


def _publish(place: Place, number: int = 6) -> None:
    """Publish messages for a pull consumer."""
    place.register_puller()
    place.publish_batch(number)


def _receive(place: Place, **options: Any) -> list[dict[str, Any]]:
    """Receive up to two messages, or as many as the options say."""
    asked = {"max": 2, "wait_s": 10, "lease_s": 60} | options
    messages: list[dict[str, Any]] = place.call("POST", f"{place.puller}/receive", json=asked)[
        "messages"
    ]
    place.pulled += [one["id"] for one in messages]
    return messages


def _settle(place: Place, messages: list[dict[str, Any]], what: str = "ack", **how: int) -> None:
    """Settle the leases. Without a response a worker repeats the call: it learns what was done."""
    leases = [one["lease"] for one in messages]
    done = place.call("POST", f"/leases/{what}", json={"leases": leases, **how})
    assert done == {"done": leases, "failed": []}


def _shown(place: Place, message: dict[str, Any]) -> dict[str, Any]:
    """The delivery of a received message, as the API shows it."""
    shown: dict[str, Any] = place.call("GET", f"/deliveries/{message['delivery_id']}")
    return shown


@pytest.mark.seed("S2-60")
def receive(place: Place) -> None:
    _publish(place)
    with place.dying():
        while set(place.pulled) != set(place.published):
            messages = _receive(place, wait_s=5, lease_s=3)
            longer = {"leases": [one["lease"] for one in messages], "lease_s": 60}
            assert place.call("POST", "/leases/extend", json=longer)["failed"] == []
            _settle(place, messages)


@pytest.mark.seed("S2-60")
def nack(place: Place, what: str = "nack") -> None:
    """Receive, give back and receive again."""
    _publish(place, 1)
    messages = _receive(place)
    with place.dying():
        _settle(place, messages, what, delay_s=0)
    (again,) = _receive(place)
    shown = _shown(place, again)
    assert (shown["attempt_count"], shown["failure_count"]) == (2, int(what == "nack"))
    _settle(place, [again])
    # The check at the end wants no failure charged: a replay starts a fresh budget.
    place.call("POST", f"/deliveries/{again['delivery_id']}/replay")
    _settle(place, _receive(place))


@pytest.mark.seed("S2-60")
def release(place: Place) -> None:
    nack(place, "release")


@pytest.mark.seed("S4-R4")
def resume(place: Place) -> None:
    """A worker that was killed gets its leases again."""
    _publish(place, 2)
    worker = {"lease_s": 600, "worker_id": "w1"}
    _receive(place, **worker)
    assert place.pulled == place.published
    with place.dying():
        again = _receive(place, **worker, resume=True)
    assert [one["id"] for one in again] == place.published
    # The first attempt, perhaps one that was claimed but not handed out, and this one.
    attempts = 3 if place.step == "before_receive_response" else 2
    assert [_shown(place, one)["attempt_count"] for one in again] == [attempts] * 2
    _settle(place, again)


@pytest.mark.seed("S2-57")
def acknowledge_at_once(place: Place) -> None:
    """With auto_ack the messages of a lost response are lost."""
    _publish(place)
    wanted = len(place.published) - (2 if place.step == "before_receive_response" else 0)
    with place.dying():
        while len(set(place.pulled)) < wanted or not place.point.was_reached():
            _receive(place, wait_s=5, lease_s=2, auto_ack=True)
    place.settle()
    assert len(set(place.pulled)) == wanted


@pytest.mark.parametrize(
    "crash",
    [
        *rows(receive, ONCE, "in_claim", "after_claim", "before_receive_response"),
        *rows(receive, ONCE, "in_extend", "in_settle", "after_pull_settle"),
        *rows(nack, THRICE, "in_settle", "after_pull_settle"),
        *rows(release, THRICE, "after_pull_settle"),
        *rows(resume, TWICE, "in_claim", "before_receive_response"),
        *rows(acknowledge_at_once, ONCE, "in_claim", "after_claim", "in_settle"),
        *rows(acknowledge_at_once, PERHAPS, "before_receive_response"),
    ],
)
def test_a_crash_of_a_web_process_loses_nothing_that_is_pulled(place: Place, crash: Crash) -> None:
    place.survive(crash)
