"""After any sequence of steps, the tables agree with docs/states.md."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from channels_app.core import times
from channels_app.core.backoff import PRESETS
from channels_app.core.errors import BrokerError, Conflict, NotFound
from channels_app.database import clock
from channels_app.models import Consumer
from channels_app.registry import consumers
from delivery import replay
from delivery.core import lifecycle
from delivery.core.leases import Lease
from delivery.core.lifecycle import ClaimAllowance, ClaimedDelivery, DirectClaim
from delivery.core.outcome import Outcome
from delivery.health import consumer_health
from delivery.models import Attempt, Counter, Delivery
from delivery.queue import cancel, claim, fanout, lease_rows, release, settle
from delivery.queue.claim import ClaimRequest
from delivery.queue.settle import Result
from tests.integration.stateful.model import CANCELLED, DEAD, IN_FLIGHT, QUEUED, Books, Row
from tests.integration.stateful.running import run
from tests.support.principals import acting
from tests.support.properties import examples
from tests.support.pumping import make_channel, make_consumer, publish

NOWHERE = "http://127.0.0.1:9/"
ALICE = acting("user:alice", "a test")
LEASE_MS = 10_000
AFTER_THE_LEASE_S = 11
EXAMPLES = examples(few=8, many=16)
MAX_ATTEMPTS = 3
ENDS = [
    Outcome.DELIVERED,
    Outcome.SERVER_ERROR,
    Outcome.TIMEOUT,
    Outcome.GONE,
    Outcome.INTERRUPTED,
]
PICK = st.integers(0, 1 << 16)
"""Picks one of the existing objects, modulo their number."""
OWNER = st.sampled_from([1, 2])
State = Consumer.State
Switch: TypeAlias = tuple[Callable[..., object], State, dict[State, type[BrokerError]]]
SWITCHES: dict[str, Switch] = {
    "pause": (
        consumers.pause,
        State.PAUSED,
        {State.RETIRED: NotFound, State.DISABLED: Conflict},
    ),
    "resume": (consumers.resume, State.ACTIVE, {State.RETIRED: NotFound}),
    "retire": (consumers.retire, State.RETIRED, {State.RETIRED: NotFound}),
}
"""The step of each switch, the state that it leads to, and the states that refuse it."""


class Deliveries(RuleBasedStateMachine):
    """Real steps on the real database, beside a model of their expected effects."""

    @initialize()
    def begin(self) -> None:
        """Create two consumers with deliveries; rows of other runs are ignored."""
        self.channel = make_channel()
        self.consumers = [make_consumer(self.channel, NOWHERE) for _ in range(2)]
        self.states = {consumer.id: State.ACTIVE for consumer in self.consumers}
        self.books = Books()
        self.accepted: dict[int, datetime | None] = {}
        self.messages: list[int] = []
        self.held: list[ClaimedDelivery] = []
        """All deliveries ever claimed: their workers may return at any time."""
        self.now = clock.now() + timedelta(seconds=1)
        self.accept(3, None)
        self.fan_out()

    # -- events --------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 4, AFTER_THE_LEASE_S, 60]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(count=st.integers(1, 3), lasts=st.sampled_from([None, None, 5, 30]))
    def accept(self, count: int, lasts: int | None) -> None:
        expires_at = self.now + timedelta(seconds=lasts) if lasts else None
        for message in publish(self.channel, *[b"x"] * count, expires_at=expires_at):
            self.accepted[message] = expires_at
            self.messages.append(message)

    @rule()
    def fan_out(self) -> None:
        fanout.fan_out(1000, slot=0)
        self._learn([])

    @rule(limit=st.integers(0, 2), owner=OWNER)
    def fan_out_to_a_taker(self, limit: int, owner: int) -> None:
        idle = [key for key in self._active() if not self.books.due(key, self.now)]
        leaves = {key: ClaimAllowance(limit, LEASE_MS) for key in idle}
        taker = DirectClaim(
            owner, self.now, lambda counts: {key: leaves[key] for key in leaves if key in counts}
        )
        claimed = fanout.fan_out(1000, slot=1, claimer=taker).claimed
        mine = [row for row in claimed if row.consumer_id in self.states]
        assert all(count <= limit for count in Tally(row.consumer_id for row in mine).values())
        self._learn(mine, owner)

    @rule(pick=PICK, limit=st.integers(1, 3), owner=OWNER)
    def claim(self, pick: int, limit: int, owner: int) -> None:
        active = self._active()
        if not active:
            return
        consumer = active[pick % len(active)]
        until = self.now + timedelta(milliseconds=LEASE_MS)
        wanted = self.books.claim(consumer, limit, self.now, owner, until)
        want = ClaimRequest(consumer, limit, LEASE_MS, owner)
        taken = claim.claim([want], now=self.now, slot=owner).rows
        assert {(row.id, row.attempt) for row in taken} == wanted
        self.held += taken

    @rule(pick=PICK, owner=OWNER, outcome=st.sampled_from(ENDS), is_forgotten=st.booleans())
    def a_slow_worker_comes_back(
        self, pick: int, owner: int, outcome: Outcome, is_forgotten: bool
    ) -> None:
        """Settle a lapsed lease that another worker took over, with or without its attempt row."""
        self.claim(pick, 3, owner)
        self.time_passes(AFTER_THE_LEASE_S)
        self.claim(pick, 3, 3 - owner)
        late = [row for row in self.held if self._is_overtaken(row)]
        if not late:
            return
        row = late[pick % len(late)]
        if is_forgotten:
            Attempt.objects.filter(delivery_id=row.id, number=row.attempt).delete()
            self.books.rows[row.id].forgotten.add(row.attempt)
        self._settle([row], outcome)

    @precondition(lambda self: self.held)
    @rule(picks=st.lists(PICK, min_size=1, max_size=3), outcome=st.sampled_from(ENDS))
    def settle(self, picks: list[int], outcome: Outcome) -> None:
        """Settle some claims, in time or late, together, and perhaps twice."""
        chosen: dict[int, ClaimedDelivery] = {}
        for pick in picks:
            some = self.held[-4:] if pick % 4 else self.held
            row = some[pick % len(some)]
            chosen[id(row)] = row
        self._settle(chosen.values(), outcome)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, seconds=st.sampled_from([1, 30]))
    def a_pull_consumer_extends_its_lease(self, pick: int, seconds: int) -> None:
        """Extend a lease, in time or late: it holds unless another worker claimed the delivery."""
        held = self.held[pick % len(self.held)]
        lease = Lease(
            *(held.id, held.consumer_id, held.attempt, held.failure_count),
            *(held.interruption_count, held.accepted_at, self.now, "worker"),
        )
        until = self.now + timedelta(seconds=seconds)
        row = self.books.rows[held.id]
        is_held = row.state is IN_FLIGHT and row.attempts == held.attempt
        if is_held:
            row.due = until
        assert lease_rows.extend({lease: until}) == ({lease} if is_held else set())

    @rule(owner=OWNER)
    def a_pump_catches_up(self, owner: int) -> None:
        """Deliver all that is due to active consumers."""
        known = len(self.held)
        for place in range(len(self._active())):
            self.claim(place, 100, owner)
        self._settle(self.held[known:], Outcome.DELIVERED)

    @rule(pick=PICK, owner=OWNER, is_fanned_out=st.booleans())
    def a_message_expires(self, pick: int, owner: int, is_fanned_out: bool) -> None:
        """Expire a message at this instant: it may not be claimed any more."""
        self.accept(1, 5)
        if is_fanned_out:
            self.fan_out()
            self.time_passes(5)
            self.claim(pick, 100, owner)
        else:
            self.a_pump_catches_up(owner)
            self.time_passes(5)
            self.fan_out_to_a_taker(2, owner)

    @rule(owner=OWNER)
    def a_pump_dies(self, owner: int) -> None:
        for row in self.books.of(self.states, IN_FLIGHT):
            if row.owner == owner:
                row.give_back(self.now)
        release.release_owner(owner, now=self.now, slot=4)

    @rule()
    def sweep_what_is_switched_off(self) -> None:
        off = self.states.keys() - set(self._active())
        for row in self.books.of(off, IN_FLIGHT):
            if row.is_due(self.now):
                row.give_back(self.now)
        release.release_lapsed(now=self.now, slot=5)

    @rule()
    def sweep_what_was_retired(self) -> None:
        for row in self.books.of(self._in(State.RETIRED), QUEUED):
            row.finish(CANCELLED)
        for row in self.books.of(self._in(State.RETIRED), IN_FLIGHT):
            if row.is_due(self.now):
                row.give_back(self.now, interrupted=False)
        cancel.cancel_retired(self.now, slot=6, batch=1000)

    # -- actions of people ---------------------------------------------------------------------

    @precondition(lambda self: self.books.rows)
    @rule(pick=PICK)
    def replay_one(self, pick: int) -> None:
        row = self._row(pick)
        if self.books.replayable(row, self._in(State.RETIRED), self.now):
            row.replay(self.now)
            replay.replay_one(row.id, ALICE, now=self.now, slot=7)
        else:
            with pytest.raises(Conflict):
                replay.replay_one(row.id, ALICE, now=self.now, slot=7)

    @rule()
    def replay_the_dead(self) -> None:
        retired = self._in(State.RETIRED)
        for row in self.books.of(self.states, DEAD):
            if self.books.replayable(row, retired, self.now):
                row.replay(self.now)
        wanted = replay.parse({"channel": self.channel.slug})
        job = replay.create(wanted, replay.consumers_of(wanted, ALICE), ALICE, now=self.now)
        while job.state == "running":
            replay.run_slice(job, self.now, 1000, 8)
            job.refresh_from_db()

    @precondition(lambda self: self.books.rows)
    @rule(pick=PICK, is_held=st.booleans())
    def cancel_one(self, pick: int, is_held: bool) -> None:
        held = self.books.of(self.states, IN_FLIGHT) if is_held else []
        row = held[pick % len(held)] if held else self._row(pick)
        if row.state is QUEUED:
            row.finish(CANCELLED)
            cancel.cancel_one(row.id, ALICE, now=self.now, slot=9)
        else:
            with pytest.raises(Conflict):
                cancel.cancel_one(row.id, ALICE, now=self.now, slot=9)

    @precondition(lambda self: self.messages)
    @rule(pick=PICK)
    def cancel_message(self, pick: int) -> None:
        message = self.messages[pick % len(self.messages)]
        self.accepted.pop(message, None)
        for row in self.books.of(self.states, QUEUED):
            if row.message == message:
                row.finish(CANCELLED)
        cancel.cancel_message(message, ALICE, now=self.now, slot=10)

    @rule(pick=PICK, what=st.sampled_from(["pause", "resume", "resume", "disable", "retire"]))
    def switch(self, pick: int, what: str) -> None:
        consumer = self.consumers[pick % 2]
        state = self.states[consumer.id]
        if what == "retire" and self._in(State.RETIRED) - {consumer.id}:
            return  # without a remaining consumer nothing more would happen
        if what == "disable":
            disabled = consumer_health.disable(consumer.id, reason="gone", now=self.now)
            assert disabled is (state is State.ACTIVE)
            self.states[consumer.id] = State.DISABLED if disabled else state
            return
        step, to, refused = SWITCHES[what]
        if error := refused.get(state):
            with pytest.raises(error):
                step(self.channel.slug, consumer.client_id, principal=acting("user:alice"))
            return
        step(self.channel.slug, consumer.client_id, principal=acting("user:alice"))
        self.states[consumer.id] = to

    # -- invariants ----------------------------------------------------------------------------

    @invariant()
    def rows_are_as_they_should_be(self) -> None:
        names = ("attempt_count", "failure_count", "interruption_count", "due_at", "lease_owner")
        found = Delivery.objects.filter(channel=self.channel).values_list("id", "state", *names)
        assert {key: tuple(rest) for key, *rest in found} == {
            row.id: row.shown for row in self.books.rows.values()
        }

    @invariant()
    def counters_are_true(self) -> None:
        assert Counter.read(self.states) == {key: self.books.counts(key) for key in self.states}

    @invariant()
    def every_attempt_is_recorded_once_and_no_delivery_is_delivered_twice(self) -> None:
        found = Attempt.objects.filter(delivery_id__in=list(self.books.rows))
        numbers: dict[int, list[int]] = {key: [] for key in self.books.rows}
        delivered: Tally[int] = Tally()
        for key, number, outcome in found.values_list("delivery_id", "number", "outcome"):
            numbers[key].append(number)
            delivered[key] += outcome == Outcome.DELIVERED
        for row in self.books.rows.values():
            closed = row.attempts - (row.state is IN_FLIGHT)
            known = [n for n in range(1, closed + 1) if n not in row.forgotten]
            assert sorted(numbers[row.id]) == known
            assert delivered[row.id] <= row.chances

    # -- helpers -------------------------------------------------------------------------------

    def _active(self) -> list[int]:
        return sorted(self._in(State.ACTIVE))

    def _in(self, state: State) -> set[int]:
        return {key for key, known in self.states.items() if known is state}

    def _row(self, pick: int) -> Row:
        rows = list(self.books.rows.values())
        return rows[pick % len(rows)]

    def _is_overtaken(self, claimed: ClaimedDelivery) -> bool:
        row = self.books.rows[claimed.id]
        return row.state is IN_FLIGHT and row.attempts > claimed.attempt

    def _settle(self, rows: Iterable[ClaimedDelivery], outcome: Outcome) -> None:
        results = [self._result(row, outcome) for row in rows]
        ours = 0
        for result in results:
            delivery = self.books.rows[result.claimed.id]
            if delivery.state is IN_FLIGHT and delivery.attempts == result.claimed.attempt:
                delivery.settle(result.transition, self.now)
                ours += 1
        assert settle.settle(results, now=self.now, slot=3) == ours

    def _learn(self, claimed: list[ClaimedDelivery], owner: int = 0) -> None:
        """Check that exactly the accepted messages have one row per consumer, and add these."""
        found = {
            (message, consumer): (key, accepted_at)
            for key, message, consumer, accepted_at in Delivery.objects.filter(
                message_id__in=list(self.accepted)
            ).values_list("id", "message_id", "consumer_id", "accepted_at")
        }
        wanting = self.states.keys() - self._in(State.RETIRED)
        assert found.keys() == {(message, key) for message in self.accepted for key in wanting}
        leased = {row.id: row for row in claimed}
        for (message, consumer), (key, accepted_at) in found.items():
            row = Row(key, message, consumer, times.floor_ms(accepted_at), self.accepted[message])
            if key in leased:
                assert not row.is_over(self.now)
                row.take(owner, self.now + timedelta(milliseconds=LEASE_MS))
            self.books.rows[key] = row
        self.accepted.clear()
        self.held += claimed

    def _result(self, row: ClaimedDelivery, outcome: Outcome) -> Result:
        move = lifecycle.after_attempt(
            outcome,
            failure_count=row.failure_count,
            attempt_count=row.failure_count + row.interruption_count + 1,
            max_attempts=MAX_ATTEMPTS,
            policy=PRESETS["fast"],
            retry_after=None,
            jitter=0.5,
        )
        return Result(row, move, outcome, datetime.now(UTC), "test")


@pytest.mark.slow("a state machine over real tables")
@pytest.mark.django_db(transaction=True)
def test_the_tables_agree_with_the_model_whatever_happens() -> None:
    run(Deliveries, examples=EXAMPLES, steps=40)
