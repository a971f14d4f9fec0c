"""What a pump sends next: by priority and response times, with capacity for prompt consumers."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delivery.conf import conf
from delivery.core.breaker import Circuit
from delivery.pump import capacity
from delivery.pump.assignment import MAX_SCANNED, SCAN, Pick, ReadyConsumers
from delivery.pump.capacity import CLAIM_BATCH, RESERVED, UNTRIED_RESERVED, admits, shares
from delivery.pump.consumer_queue import LEAD, PROMPT_S, ConsumerQueue, QueueStatus
from tests.support.views import consumer_view

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TICKS = 1_000.0
REQUESTS = conf().pump_in_flight


def queue(
    number: int, *, most: int = 64, answer_s: float | None = 0.01, **due: float
) -> ConsumerQueue:
    """Return a consumer with deliveries due, given as ``pN=seconds from now``."""
    view = consumer_view(id=number, max_in_flight=most)
    made = ConsumerQueue(view, Circuit(), answer_s=answer_s)
    for level, seconds in due.items():
        made.expect(NOW + timedelta(seconds=seconds), int(level.removeprefix("p")))
    return made


class Pump:
    """The scheduling of a pump alone: its queues, ready consumers and number of open requests."""

    def __init__(self, queues: Iterable[ConsumerQueue], is_open: int = 0) -> None:
        self.queues = {queue.consumer.id: queue for queue in queues}
        self.ready_consumers = ReadyConsumers(self.queues)
        self.is_open = is_open
        for it in self.queues.values():
            self.ready_consumers.note(it)

    @property
    def free(self) -> int:
        return REQUESTS - self.is_open

    def gather(self, most: int = 40, *, ticks: float = TICKS, guard: bool = False) -> list[Pick]:
        def admitted(status: QueueStatus, in_flight: int) -> int:
            return admits(status, in_flight, self.free)

        return self.ready_consumers.gather(NOW, ticks, admitted, most, from_below=guard)

    def open(self, ticks: float = TICKS) -> int:
        """Take all that one round allows, as if each consumer had a backlog of one priority."""
        taken = 0
        for share in shares(self.gather(ticks=ticks), self.free, CLAIM_BATCH):
            for _ in range(share.limit):
                share.queue.began[len(share.queue.began)] = ticks
            share.queue.in_flight += share.limit
            taken += share.limit
            self.ready_consumers.note(share.queue)
            self.is_open += share.limit
        return taken

    def fill(self, ticks: float = TICKS) -> None:
        """Run rounds until nothing more is taken."""
        while self.open(ticks):
            pass


# -- by priority ---------------------------------------------------------------------------------


def test_consumer_queues_are_ordered_by_highest_due_priority() -> None:
    pump = Pump([queue(1, p0=-9), queue(2, p4=-1, p9=60), queue(3, p0=-1, p7=-1)])
    assert [(pick.queue.consumer.id, pick.level) for pick in pump.gather()] == [
        (3, 7),
        (2, 4),
        (1, 0),
    ]


def test_consumers_of_one_priority_take_turns() -> None:
    pump = Pump([queue(n, p4=-1) for n in range(6)])
    turns = [[pick.queue.consumer.id for pick in pump.gather(2)] for _ in range(4)]
    assert turns == [[0, 1], [2, 3], [4, 5], [0, 1]]


def test_the_starvation_guard_considers_the_lowest_priority() -> None:
    pump = Pump([queue(1, p0=-1), *(queue(n, p9=-1) for n in range(2, 20))])
    assert 1 not in {pick.queue.consumer.id for pick in pump.gather(10)}
    guarded = [pick.queue.consumer.id for pick in pump.gather(10, guard=True)]
    assert len(guarded) == len(set(guarded)) == 10
    assert 1 in guarded


def test_a_consumer_queue_rises_when_a_higher_priority_is_due() -> None:
    it = queue(1, p0=-1, p9=60)
    pump = Pump([it])
    assert [pick.level for pick in pump.gather()] == [0]
    assert pump.ready_consumers.wake_at() == (NOW + timedelta(seconds=60) - LEAD).timestamp()


def test_a_full_consumer_queue_sleeps_until_an_event() -> None:
    it = queue(1, most=2, p4=-1)
    it.in_flight = 2
    pump = Pump([it])
    assert pump.gather() == []
    assert pump.ready_consumers.wake_at() is None
    it.in_flight = 1
    assert pump.gather() == []
    pump.ready_consumers.note(it)
    assert pump.ready_consumers.wake_at() == 0.0
    assert [pick.room for pick in pump.gather()] == [1]


def test_the_cache_of_due_times_is_bounded() -> None:
    it = queue(1)
    pump = Pump([it])
    for second in range(3 * MAX_SCANNED, 0, -1):
        it.due = {4: NOW + timedelta(seconds=second)}
        pump.ready_consumers.note(it)
        assert pump.gather() == []
    assert len(pump.ready_consumers._asleep) < MAX_SCANNED + 10


def test_one_claim_is_shared_by_consumers_of_one_priority() -> None:
    pump = Pump([queue(1, p9=-1), *(queue(n, p0=-1) for n in range(2, 12))])
    limits = {
        share.queue.consumer.id: share.limit for share in shares(pump.gather(), pump.free, 100)
    }
    assert limits == {1: 64, **dict.fromkeys(range(2, 12), 10)}


def test_a_scan_looks_at_few_of_a_thousand_full_consumers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hung = [queue(n, answer_s=1.0, p9=-1) for n in range(1_000)]
    pump = Pump([queue(1_000, p4=-1), *hung], is_open=REQUESTS - REQUESTS // RESERVED)
    pump.gather()
    looks: list[ConsumerQueue] = []
    place = ConsumerQueue.place

    def noted(queue: ConsumerQueue, now: datetime, ticks: float) -> Any:
        looks.append(queue)
        return place(queue, now, ticks)

    monkeypatch.setattr(ConsumerQueue, "place", noted)
    assert [pick.queue.consumer.id for pick in pump.gather()] == [1_000]
    assert len(looks) <= SCAN


# -- capacity for prompt consumers ---------------------------------------------------------------


def test_seventy_hanging_consumers_do_not_fill_a_pump() -> None:
    pump = Pump([])
    for n in range(70):  # one after the other, each with more deliveries than its limit
        pump.queues[n] = queue(n, answer_s=None, p4=-1)
        pump.ready_consumers.note(pump.queues[n])
        pump.fill(TICKS + n)
    assert pump.free >= REQUESTS // UNTRIED_RESERVED


def test_consumers_that_begin_to_hang_do_not_fill_a_pump() -> None:
    pump = Pump([])
    for n in range(70):
        pump.queues[n] = queue(n, p4=-1)
        pump.ready_consumers.note(pump.queues[n])
        pump.fill()
    assert pump.free > 0
    healthy = pump.queues[70] = queue(70, p4=-1)
    pump.ready_consumers.note(healthy)
    assert [pick.queue for pick in pump.gather(ticks=TICKS + 2 * PROMPT_S)] == [healthy]


def test_hanging_consumers_share_a_shrinking_limit() -> None:
    alone = Pump([queue(1, most=1_000, answer_s=None, p4=-1)])
    alone.fill()
    many = Pump([queue(n, most=1_000, answer_s=None, p4=-1) for n in range(20)])
    many.fill()
    (one,) = [it.in_flight for it in alone.queues.values()]
    assert one == (REQUESTS - REQUESTS // RESERVED) // 2
    assert max(it.in_flight for it in many.queues.values()) < one / 4


@pytest.mark.parametrize("most", [64, 1_000])
def test_a_responding_consumer_gets_its_full_limit(most: int) -> None:
    pump = Pump([queue(1, most=most, p4=-1)])
    pump.fill()
    assert pump.queues[1].in_flight >= min(most, REQUESTS - REQUESTS // RESERVED)


def test_an_unknown_consumer_gets_one_request() -> None:
    new = queue(1, answer_s=None, p4=-1)
    pump = Pump([new], is_open=REQUESTS - REQUESTS // RESERVED)
    assert [share.limit for share in shares(pump.gather(), pump.free, CLAIM_BATCH)] == [1]
    new.in_flight = 1
    assert pump.gather() == []


def test_consumer_states_by_response_time() -> None:
    it = queue(1, answer_s=None)
    assert it.status(TICKS) is QueueStatus.UNTRIED
    it.in_flight, it.began = 2, {1: TICKS, 2: TICKS + 1}
    assert it.status(TICKS + 1) is QueueStatus.OTHER
    it.answered(0.01, TICKS + 1)
    assert it.status(TICKS + 1.1) is QueueStatus.PROMPT  # the other request is open for 1 s
    assert it.status(TICKS + 1.1 + PROMPT_S) is QueueStatus.OTHER
    it.began.clear()
    for _ in range(5):
        it.answered(15.0, TICKS + 2)
    assert it.status(TICKS + 2) is QueueStatus.OTHER
    for _ in range(8):
        it.answered(0.01, TICKS + 3)
    assert it.status(TICKS + 3) is QueueStatus.PROMPT


def test_scans_rotate_among_more_consumers_than_fit() -> None:
    full = [queue(n, answer_s=1.0, p4=-1) for n in range(SCAN + 50)]
    for it in full[:SCAN]:
        it.in_flight = 60
    pump = Pump(full, is_open=REQUESTS - REQUESTS // RESERVED - 50)
    assert pump.gather() == []
    assert len(pump.gather()) == 40
    assert capacity.admits(QueueStatus.OTHER, 60, pump.free) < 0
