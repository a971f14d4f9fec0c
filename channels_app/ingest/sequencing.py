"""Store numbered messages in the order of their numbers, whichever request arrives first (S2-65).

A request that arrives early waits, and stores nothing meanwhile. When its number is next, its
message is accepted like any other. So messages are accepted in the order of their numbers, and
later stages keep that order. Messages without a number are not delayed.
"""

import time
from collections.abc import Hashable, Sequence
from datetime import timedelta

from channels_app import failpoints, metrics
from channels_app.core import ids
from channels_app.core.errors import BrokerError, Conflict, RateLimited
from channels_app.core.sequence import RESTART, Turn
from channels_app.database import clock, transactions
from channels_app.ingest import accept, sequence
from channels_app.ingest.accept import Accepted, Publication
from channels_app.ingest.concurrency import bodies
from channels_app.ingest.sequence import SequenceNumbers
from channels_app.models import reseed_ids
from channels_app.registry.cache import ChannelConfig

FIRST_PAUSE_S, MAX_PAUSE_S = 0.002, 0.05
"""Bounds of the pause between two checks whether a number is next, in seconds."""
MAX_AHEAD_S = 0.02
"""Tolerated clock difference between hosts, in seconds, for the order of message ids."""
FIELD = "producer_seq"

Result = Accepted | BrokerError
"""The result for a message; a problem if it was rejected."""


def accept_in_sequence(
    channel: ChannelConfig,
    producer_id: int | None,
    messages: Sequence[Publication],
    owner: Hashable,
) -> list[Result]:
    """Store messages; results in the same order. Those without a number are stored at once.

    Waits at most the channel's reorder window (twice, if lower numbers wait too), in a slot of
    ``owner``. Raises as ``accept`` does.
    """
    if all(message.producer_seq is None for message in messages):
        return list(accept.accept(channel, producer_id, messages))
    visit = _Waiter(channel, producer_id, messages)
    visit.store_plain()
    visit.round()
    if not visit.waiting:
        return visit.results()
    metrics.NUMBERS.labels("early").inc(len(visit.waiting))
    # Not one of the slots for bodies: the body of the missing number needs one.
    place = "early", owner
    if not bodies.take(place, waits=False):
        visit.turn_away()
        return visit.results()
    try:
        pause = FIRST_PAUSE_S
        while visit.waiting:
            time.sleep(pause)
            pause = min(MAX_PAUSE_S, pause * 1.5)
            if visit.has_moved():
                visit.round()
    finally:
        bodies.give_back(place)
    return visit.results()


class _Waiter:
    """One request with numbered messages."""

    def __init__(
        self, channel: ChannelConfig, producer_id: int | None, messages: Sequence[Publication]
    ) -> None:
        self.channel, self.producer_id, self.messages = channel, producer_id, messages
        self.outcomes: dict[int, Result] = {}
        self.waiting = _ordered(messages)
        """Indexes of the messages that wait, in the order of their numbers."""
        self.epochs: dict[str, int] = {}
        self.window_s = channel.reorder_window_ms / 1000
        self.end = time.monotonic() + self.window_s
        self.until = clock.now() + timedelta(seconds=self.window_s)

    def results(self) -> list[Result]:
        """The results of all messages, in their order."""
        return [self.outcomes[place] for place in range(len(self.messages))]

    def store_plain(self) -> None:
        """Store the messages without a number at once."""
        plain = [n for n, message in enumerate(self.messages) if message.producer_seq is None]
        if plain:
            self._accept(plain, self.outcomes)

    def turn_away(self) -> None:
        """Reject the messages that are left: too many requests wait already."""
        detail = "Too many of your messages wait for earlier ones; send those first."
        for place in self.waiting:
            self.outcomes[place] = RateLimited("too_many_early", detail, field=FIELD)
        self.waiting = []

    def has_moved(self) -> bool:
        """Whether to run a round: a number may be next, or the window has ended."""
        if time.monotonic() >= self.end:
            return True
        keys = {self.messages[place].ordering_key for place in self.waiting}
        now = sequence.standing(self.channel.id, self.producer_id, keys)
        return any(
            now[key][1] != self.epochs[key] or self._number(place) <= now[key][0]
            for place in self.waiting
            for key in [self.messages[place].ordering_key]
        )

    def round(self) -> None:
        """Store the messages that are next, in one transaction; reject those that are too late."""
        outcomes, epochs, skipped = transactions.run(self._round, on_collision=reseed_ids)
        failpoints.reach("after_sequence")
        self.outcomes |= outcomes
        self.epochs = epochs
        self.waiting = [place for place in self.waiting if place not in outcomes]
        if skipped:
            metrics.NUMBERS.labels("skipped").inc(skipped)
        passed_count = sum(isinstance(outcome, BrokerError) for outcome in outcomes.values())
        metrics.NUMBERS.labels("passed").inc(passed_count)

    def _round(self) -> tuple[dict[int, Result], dict[str, int], int]:
        keys = {self.messages[place].ordering_key for place in self.waiting}
        held = SequenceNumbers(self.channel.id, self.producer_id, keys, clock.now())
        epochs = {key: held.epoch(key) for key in keys}
        outcomes: dict[int, Result] = {}
        going: list[int] = []
        early: list[int] = []
        for place in self.waiting:
            message, number = self.messages[place], self._number(place)
            key = message.ordering_key
            earlier = accept.earlier_result(self.channel, self.producer_id, message)
            if earlier is not None:
                outcomes[place] = earlier
            elif self.epochs.get(key, epochs[key]) != epochs[key]:
                outcomes[place] = _restarted(number)
            elif (turn := self._ask(held, key, number)) is Turn.GOES:
                going.append(place)
                if number == RESTART:
                    overtaken = [
                        index for index in early if self.messages[index].ordering_key == key
                    ]
                    outcomes |= {index: _restarted(self._number(index)) for index in overtaken}
            elif turn is Turn.PASSED:
                outcomes[place] = _passed(number, held.expected(key))
            else:
                early.append(place)
                held.wait(key, number, self.until)
        if going:
            _wait_for_later_keys(held.last_message_id())
            self._accept(going, outcomes)
            for place in going:
                stored = outcomes[place]
                assert isinstance(stored, Accepted)
                held.went(self.messages[place].ordering_key, stored.message_id)
        held.write()
        failpoints.reach("in_sequence")
        return outcomes, {key: held.epoch(key) for key in keys}, held.skipped

    def _ask(self, held: SequenceNumbers, key: str, number: int) -> Turn:
        ticks = time.monotonic()
        # Lower numbers that wait go first, but only within a second window.
        is_last = ticks >= self.end + self.window_s
        return held.ask(key, number, is_over=ticks >= self.end, gives_way=not is_last)

    def _accept(self, places: list[int], outcomes: dict[int, Result]) -> None:
        messages = [self.messages[place] for place in places]
        stored = accept.accept(self.channel, self.producer_id, messages)
        outcomes |= dict(zip(places, stored, strict=True))

    def _number(self, place: int) -> int:
        number = self.messages[place].producer_seq
        assert number is not None
        return number


def _ordered(messages: Sequence[Publication]) -> list[int]:
    """Indexes of the numbered messages, sorted by key, restart and number."""
    restarts: dict[str, int] = {}
    ranks: list[tuple[str, int, int, int]] = []
    for place, message in enumerate(messages):
        if message.producer_seq is None:
            continue
        restarts[message.ordering_key] = restarts.get(message.ordering_key, 0) + (
            message.producer_seq == RESTART
        )
        ranks.append(
            (message.ordering_key, restarts[message.ordering_key], message.producer_seq, place)
        )
    return [place for *_, place in sorted(ranks)]


def _wait_for_later_keys(message_id: int) -> None:
    """Wait until the clock passes the last message's millisecond, so that new ids are higher."""
    ahead = (ids.created_ms(message_id) + 1) / 1000 - time.time()
    if 0 < ahead <= MAX_AHEAD_S:
        time.sleep(ahead)


def _passed(number: int, expected: int) -> Conflict:
    detail = (
        f"Number {number} of this key was sent before, or came too late: {expected} is expected. "
        "Send it without a number to store it at the end."
    )
    return Conflict("sequence_passed", detail, field=FIELD)


def _restarted(number: int) -> Conflict:
    detail = f"The sequence of this key was restarted while {number} waited; nothing was stored."
    return Conflict("sequence_restarted", detail, field=FIELD)
