"""Store numbered messages in the order of their numbers, whichever request comes first (S2-65).

Who comes early waits in its request, and nothing of it is stored. When its turn comes it is
accepted like any other: so the order of acceptance is that of the numbers, and all that follows
keeps it. Messages without a number never come here.
"""

import time
from collections.abc import Hashable, Sequence
from datetime import timedelta

from channels_app import clock, failpoints, metrics, transactions
from channels_app.api.concurrency import bodies
from channels_app.api.problems import RETRY_AFTER_S, ApiProblem
from channels_app.config_cache import ChannelConfig
from channels_app.models import new_id
from channels_app.rules import ids
from channels_app.rules.sequence import RESTART, Turn
from channels_app.steps import accept, sequence
from channels_app.steps.accept import Accepted, Publication
from channels_app.steps.sequence import SequenceNumbers

FIRST_PAUSE_S, MAX_PAUSE_S = 0.002, 0.05
"""Between two looks whether a turn has come."""
MAX_AHEAD_S = 0.02
"""Another host's clock may be ahead by so much before its keys are taken for younger than ours."""
FIELD = "producer_seq"

Result = Accepted | ApiProblem
"""What became of a message; a problem where it was refused."""


def accept_in_sequence(
    view: ChannelConfig, producer_id: int | None, messages: Sequence[Publication], owner: Hashable
) -> list[Result]:
    """Store messages; results in the same order. Those without a number are stored at once.

    Waits for as long as the channel says, in a place of ``owner``. Raises as ``accept`` does.
    """
    if all(one.producer_seq is None for one in messages):
        return list(accept.accept(view, producer_id, messages))
    visit = _Waiter(view, producer_id, messages)
    visit.store_plain()
    visit.round()
    if not visit.left:
        return visit.results()
    metrics.NUMBERS.labels("early").inc(len(visit.left))
    # Not in the places for its bodies: the one that is missing has to come in.
    place = "early", owner
    if not bodies.take(place, waits=False):
        visit.turn_away()
        return visit.results()
    try:
        pause = FIRST_PAUSE_S
        while visit.left:
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
        self, view: ChannelConfig, producer_id: int | None, messages: Sequence[Publication]
    ) -> None:
        self.view, self.producer_id, self.messages = view, producer_id, messages
        self.found: dict[int, Result] = {}
        self.left = _ordered(messages)
        """Places of those that wait, in the order of their turns."""
        self.epochs: dict[str, int] = {}
        self.window_s = view.reorder_window_ms / 1000
        self.end = time.monotonic() + self.window_s
        self.until = clock.now() + timedelta(seconds=self.window_s)

    def results(self) -> list[Result]:
        """What became of each."""
        return [self.found[place] for place in range(len(self.messages))]

    def store_plain(self) -> None:
        """Those without a number wait for nobody."""
        plain = [n for n, one in enumerate(self.messages) if one.producer_seq is None]
        if plain:
            self._accept(plain, self.found)

    def turn_away(self) -> None:
        """Refuse those that are left: too many requests wait already."""
        detail = "Too many of your messages wait for earlier ones; send those first."
        for place in self.left:
            self.found[place] = ApiProblem(
                429, "too_many_early", detail, field=FIELD, retry_after_s=RETRY_AFTER_S
            )
        self.left = []

    def has_moved(self) -> bool:
        """Whether to look closer: a turn may have come, or the time is over."""
        if time.monotonic() >= self.end:
            return True
        keys = {self.messages[place].ordering_key for place in self.left}
        now = sequence.standing(self.view.id, self.producer_id, keys)
        return any(
            now[key][1] != self.epochs[key] or self._number(place) <= now[key][0]
            for place in self.left
            for key in [self.messages[place].ordering_key]
        )

    def round(self) -> None:
        """Store what is in turn, in one transaction; refuse what has passed."""
        found, epochs, skipped = transactions.run(self._round, on_collision=new_id.reseed)
        failpoints.reach("after_turn")
        self.found |= found
        self.epochs = epochs
        self.left = [place for place in self.left if place not in found]
        if skipped:
            metrics.NUMBERS.labels("skipped").inc(skipped)
        passed = sum(isinstance(one, ApiProblem) for one in found.values())
        metrics.NUMBERS.labels("passed").inc(passed)

    def _round(self) -> tuple[dict[int, Result], dict[str, int], int]:
        keys = {self.messages[place].ordering_key for place in self.left}
        held = SequenceNumbers(self.view.id, self.producer_id, keys, clock.now())
        epochs = {key: held.epoch(key) for key in keys}
        found: dict[int, Result] = {}
        going: list[int] = []
        early: list[int] = []
        for place in self.left:
            message, number = self.messages[place], self._number(place)
            key = message.ordering_key
            known = accept.known(self.view, self.producer_id, message)
            if known is not None:
                found[place] = known
            elif self.epochs.get(key, epochs[key]) != epochs[key]:
                found[place] = _restarted(number)
            elif (turn := self._ask(held, key, number)) is Turn.GOES:
                going.append(place)
                if number == RESTART:
                    left = [one for one in early if self.messages[one].ordering_key == key]
                    found |= {one: _restarted(self._number(one)) for one in left}
            elif turn is Turn.PASSED:
                found[place] = _passed(number, held.expected(key))
            else:
                early.append(place)
                held.wait(key, number, self.until)
        if going:
            _wait_for_later_keys(held.last_message_id())
            self._accept(going, found)
            for place in going:
                stored = found[place]
                assert isinstance(stored, Accepted)
                held.went(self.messages[place].ordering_key, stored.message_id)
        held.write()
        failpoints.reach("in_turn")
        return found, {key: held.epoch(key) for key in keys}, held.skipped

    def _ask(self, held: SequenceNumbers, key: str, number: int) -> Turn:
        ticks = time.monotonic()
        # Who waits below goes first, but nobody waits for ever.
        is_last = ticks >= self.end + self.window_s
        return held.ask(key, number, is_over=ticks >= self.end, gives_way=not is_last)

    def _accept(self, places: list[int], found: dict[int, Result]) -> None:
        some = [self.messages[place] for place in places]
        stored = accept.accept(self.view, self.producer_id, some)
        found |= dict(zip(places, stored, strict=True))

    def _number(self, place: int) -> int:
        number = self.messages[place].producer_seq
        assert number is not None
        return number


def _ordered(messages: Sequence[Publication]) -> list[int]:
    """Places of the numbered ones: by key, and within it by number, anew behind each restart."""
    restarts: dict[str, int] = {}
    ranks: list[tuple[str, int, int, int]] = []
    for place, one in enumerate(messages):
        if one.producer_seq is None:
            continue
        restarts[one.ordering_key] = restarts.get(one.ordering_key, 0) + (
            one.producer_seq == RESTART
        )
        ranks.append((one.ordering_key, restarts[one.ordering_key], one.producer_seq, place))
    return [place for *_, place in sorted(ranks)]


def _wait_for_later_keys(message_id: int) -> None:
    """Keys carry their millisecond: let that of the last message be over, whoever made it."""
    ahead = (ids.created_ms(message_id) + 1) / 1000 - time.time()
    if 0 < ahead <= MAX_AHEAD_S:
        time.sleep(ahead)


def _passed(number: int, expected: int) -> ApiProblem:
    detail = (
        f"Number {number} of this key was sent before, or came too late: {expected} is expected. "
        "Send it without a number to store it at the end."
    )
    return ApiProblem(409, "sequence_passed", detail, field=FIELD)


def _restarted(number: int) -> ApiProblem:
    detail = f"The sequence of this key was restarted while {number} waited; nothing was stored."
    return ApiProblem(409, "sequence_restarted", detail, field=FIELD)
