"""Follow messages from the load generator through a broker to the sink, and count them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from bench.adapters import BenchError
from bench.load import UNANSWERED, Load, Plan
from bench.records import Log

POLL_S = 0.02
STALLED_AFTER_S = 30.0
"""Seconds without progress after which messages count as lost."""
AFTER_S = 0.3
"""Seconds to wait for duplicates."""

Tell = Callable[[int, int], None]


def quietly(done: int, of: int) -> None:
    """A `Tell` that does nothing."""


@dataclass(slots=True)
class Flow:
    """The results of the messages of one plan. Times are monotonic nanoseconds."""

    sent: dict[int, int] = field(default_factory=dict)
    """When each acknowledged message was sent, by number."""
    answered: dict[int, int] = field(default_factory=dict)
    """When its response arrived, by number."""
    unanswered: int = 0
    """Messages whose connection broke, so that it is unknown whether they were stored."""
    arrived: dict[int, dict[int, int]] = field(default_factory=dict)
    """When each message first reached each consumer."""
    twice: int = 0
    """Duplicate deliveries."""

    @property
    def started(self) -> int:
        """When the first message was sent."""
        return min(self.sent.values())

    @property
    def ended(self) -> int:
        """When the last message reached its last consumer."""
        return max(max(times.values(), default=0) for times in self.arrived.values())

    @property
    def deliveries(self) -> int:
        """Delivered pairs of message and consumer."""
        return sum(len(times) for times in self.arrived.values())

    @property
    def seconds(self) -> float:
        """Seconds from the first message sent to the last one delivered."""
        return (self.ended - self.started) / 1e9

    @property
    def accepting_seconds(self) -> float:
        """Seconds from the first message sent to the last one acknowledged."""
        return (max(self.answered.values()) - self.started) / 1e9

    def latencies_ms(self, consumer: int) -> list[float]:
        """Milliseconds from sending to delivery, for each message."""
        at = self.arrived[consumer]
        return [(at[number] - sent) / 1e6 for number, sent in self.sent.items() if number in at]

    def waits_ms(self) -> list[float]:
        """Milliseconds from sending to acknowledgement, for each message."""
        return [(self.answered[number] - sent) / 1e6 for number, sent in self.sent.items()]

    def lost(self) -> int:
        """Return the number of missing deliveries of acknowledged messages."""
        return sum(
            1 for times in self.arrived.values() for number in self.sent if number not in times
        )


class Following:
    """A running plan. As a context manager it stops the load generator at the end."""

    def __init__(self, plan: Plan, sink: Log, consumers: Sequence[int]) -> None:
        self._plan, self._sink = plan, sink
        self._heard, self._answers = len(sink), 0
        self.flow = Flow(arrived={consumer: {} for consumer in consumers})
        self._refusal = ""
        self._load = Load(plan)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._load.close()

    def look(self) -> bool:
        """Read new records; returns whether there were any."""
        # The sink first: acknowledgements read after it can only add messages to wait for.
        heard, answers = self._sink.read(self._heard), self._load.log.read(self._answers)
        self._heard += len(heard)
        self._answers += len(answers)
        numbers = range(self._plan.first, self._plan.first + self._plan.count)
        for consumer, number, at, _, _ in heard:
            times = self.flow.arrived.get(consumer)
            if times is None or number not in numbers:
                continue
            if number in times:
                self.flow.twice += 1
            else:
                times[number] = at
        for first, count, sent_at, answered_at, status in answers:
            self._note(range(first, first + count), sent_at, answered_at, status)
        return bool(heard or answers)

    def _note(self, numbers: range, sent_at: int, answered_at: int, status: int) -> None:
        if status in self._plan.route.accepted:
            self.flow.sent.update(dict.fromkeys(numbers, sent_at))
            self.flow.answered.update(dict.fromkeys(numbers, answered_at))
        elif status == UNANSWERED:
            self.flow.unanswered += len(numbers)
        elif not self._refusal:
            self._refusal = f"Message {numbers.start} was refused: status {status}."

    def is_done(self) -> bool:
        """Whether all messages were sent and all acknowledged ones have arrived."""
        if self._load.is_running:
            return False
        self.look()
        expected = len(self.flow.sent) * len(self.flow.arrived)
        return self.flow.deliveries >= expected and not self.flow.lost()

    def finish(self, tell: Tell = quietly, stalled_after_s: float = STALLED_AFTER_S) -> Flow:
        """Wait until everything is delivered. Raises BenchError when a message is refused or lost.

        `tell` is called with the numbers of completed and of expected deliveries. The wait ends
        after `stalled_after_s` seconds without progress.
        """
        expected = self._plan.count * len(self.flow.arrived)
        moved_at = time.monotonic()
        while not self._refusal and not self.is_done():
            if self.look():
                moved_at = time.monotonic()
                tell(self.flow.deliveries, expected)
            if time.monotonic() - moved_at > stalled_after_s:
                break
            time.sleep(POLL_S)
        time.sleep(AFTER_S)
        self.look()
        if self._refusal:
            raise BenchError(self._refusal)
        if lost := self.flow.lost():
            raise BenchError(f"LOST: {lost:,} deliveries of acknowledged messages never came.")
        if not self.flow.sent:
            raise BenchError("No message was acknowledged.")
        return self.flow
