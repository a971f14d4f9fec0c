"""When a pump takes failures of many hosts for an outage of its own side."""

from types import SimpleNamespace

import pytest

from delivery.core.breaker import Circuit
from delivery.core.outcome import Outcome
from delivery.pump import outage
from delivery.pump.consumer_queue import ConsumerQueue
from delivery.pump.outage import Outages
from delivery.pump.results import unsent
from delivery.transport import Response
from tests.support.views import consumer_view

OK = unsent(1, Outcome.DELIVERED, "")._replace(status=200)
REFUSED = unsent(1, Outcome.CONNECTION_REFUSED, "No server listens at the address.")


class Hosts:
    """Consumers of one pump on hosts of their own, at a time that only the test changes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int = 60) -> None:
        self.now = 1000.0
        monkeypatch.setattr(outage, "time", SimpleNamespace(monotonic=lambda: self.now))
        views = [consumer_view(id=n, url=f"https://{n}.example/hook") for n in range(count)]
        self.queues = [ConsumerQueue(view, Circuit()) for view in views]
        self.outages = Outages()

    def answer(self, numbers: range, answer: Response = OK) -> None:
        for n in numbers:
            assert self.outages.judge(self.queues[n], answer) is answer

    def fail(self, numbers: range, answer: Response = REFUSED) -> list[bool]:
        """Let these hosts fail; return for each whether this side is the cause."""
        return [self.outages.judge(self.queues[n], answer).is_local for n in numbers]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(monkeypatch)


@pytest.mark.trap("an outage of this side is charged to the consumers")
def test_the_fifth_host_that_stops_answering_at_once_is_not_charged(hosts: Hosts) -> None:
    hosts.answer(range(10))

    assert hosts.fail(range(6)) == [False] * 4 + [True] * 2
    assert hosts.fail(range(4)) == [True] * 4
    judged = hosts.outages.judge(hosts.queues[0], REFUSED)
    assert judged.error == (
        "Nearly all hosts stopped answering, so this is not charged. "
        "No server listens at the address."
    )


def test_hosts_that_never_answered_cannot_stop(hosts: Hosts) -> None:
    assert hosts.fail(range(10)) == [False] * 10
    hosts.answer(range(5, 9))
    assert hosts.fail(range(10)) == [False] * 10, "four have answered before"


def test_many_consumers_on_one_host_are_one(hosts: Hosts) -> None:
    for n, queue in enumerate(hosts.queues):
        queue.consumer = consumer_view(id=n, url=f"https://shop.example:{8000 + n}/hook")
    hosts.answer(range(10))

    assert not any(hosts.fail(range(10)))


def test_a_tenth_of_the_hosts_may_still_answer(hosts: Hosts) -> None:
    hosts.answer(range(60))
    hosts.fail(range(45))
    hosts.answer(range(45, 50))
    assert hosts.fail(range(1)) == [True]
    hosts.answer(range(50, 51))
    assert hosts.fail(range(1)) == [False]
    hosts.now += outage.ANSWERED_S + 1
    assert hosts.fail(range(1)) == [True], "what answered a minute ago says nothing"


def test_a_refusal_is_an_answer(hosts: Hosts) -> None:
    hosts.answer(range(10))
    hosts.answer(range(10), unsent(1, Outcome.SERVER_ERROR, "")._replace(status=500))
    hosts.answer(range(10), unsent(1, Outcome.BODY_UNREADABLE, ""))

    assert hosts.fail(range(4)) == [False] * 4


def test_old_failures_do_not_count(hosts: Hosts) -> None:
    hosts.answer(range(10))
    hosts.fail(range(4))
    hosts.now += outage.FAILED_S + 1

    assert hosts.fail(range(4, 8)) == [False] * 4
    assert hosts.fail(range(8, 9)) == [True]


def test_after_an_hour_it_is_charged_until_hosts_answer_again(hosts: Hosts) -> None:
    hosts.answer(range(10))
    ended = hosts.now + outage.MAX_S
    hosts.fail(range(10))
    while hosts.now < ended - 60:
        hosts.now += 60
        assert all(hosts.fail(range(10)))
    hosts.now = ended + 60
    assert not any(hosts.fail(range(10)))

    hosts.answer(range(10))
    assert hosts.fail(range(10)) == [False] * 8 + [True] * 2, "now most have just answered"


def test_a_host_that_answers_now_and_then_does_not_begin_the_hour_anew(hosts: Hosts) -> None:
    hosts.answer(range(6))
    hosts.fail(range(5))
    failures: list[bool] = []
    for minute in range(5, 24 * 60, 5):
        hosts.now = 1000.0 + minute * 60
        if minute % 30 == 0:
            hosts.answer(range(5, 6))
        failures += hosts.fail(range(5))

    assert sum(failures) <= outage.MAX_S / 60
    assert not any(failures[-1000:])
