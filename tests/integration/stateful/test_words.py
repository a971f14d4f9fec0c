"""After any sequence of steps, an acknowledgement counts once and nothing is sent after it."""

from datetime import timedelta
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from channels_app.core.backoff import PRESETS
from channels_app.database import clock
from channels_app.registry.cache import config_cache
from delivery import metrics
from delivery.acks import callbacks, correlations
from delivery.api import pull
from delivery.core import acks
from delivery.core.acks import AckResult, ProviderStatus
from delivery.core.lifecycle import ClaimedDelivery, Reason, Transition
from delivery.core.outcome import Outcome
from delivery.models import Delivery
from delivery.pull import leasing, receiving
from delivery.pull.receiving import ReceivedMessage, ReceiveRequest
from delivery.queue import claim, fanout, release, settle
from delivery.queue.claim import ClaimRequest
from delivery.queue.settle import Result
from delivery.transport import payloads
from tests.integration.stateful.running import run
from tests.support.counts import assert_counters_are_true
from tests.support.factories import ConsumerFactory
from tests.support.properties import examples
from tests.support.pumping import make_channel, make_consumer, publish

NOWHERE = "http://127.0.0.1:9/"
LEASE_MS = 10_000
LEASE = timedelta(milliseconds=LEASE_MS)
ACK = {
    "mode": "callback",
    "timeout_ms": 30_000,
    "on_timeout": "retry",
    "correlation": {"preset": "whatsapp-cloud", "signature": None, "verify_token": None},
}
PICK = st.integers(0, 1 << 16)
WORKER = st.sampled_from(["a", "b"])
HEARD = {AckResult.ON_TIME, AckResult.EARLY}


class Words(RuleBasedStateMachine):
    """A push consumer that acknowledges later, and a pull consumer."""

    @initialize()
    def begin(self) -> None:
        self.now = clock.now() + timedelta(seconds=1)
        self.clock = patch.object(clock, "now", lambda: self.now)
        self.clock.start()
        channel = make_channel()
        plenty = {"retry": [1], "max_attempts": 100}
        self.push = make_consumer(channel, NOWHERE, ack=ACK, **plenty)
        self.pull = ConsumerFactory.create(channel=channel, pull=True, **plenty)
        self.channel = channel
        self.held: list[ClaimedDelivery] = []
        """All deliveries that pumps ever claimed."""
        self.received_message: list[ReceivedMessage] = []
        """All messages that workers ever received."""
        self.numbers: dict[int, int] = {}
        """The last attempt number of each delivery."""
        self.confirmed: set[int] = set()
        """Deliveries that the consumer has acknowledged."""
        self.foreign = 0
        self.kept: set[str] = set()
        """Provider ids with a successful callback before the broker knew them."""
        self.messages_come()

    def teardown(self) -> None:
        if hasattr(self, "clock"):
            self.clock.stop()

    # -- events --------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 11, 31]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def messages_come(self) -> None:
        publish(self.channel, b"x", b"y")
        fanout.fan_out(1000, slot=0)

    @rule(owner=st.sampled_from([1, 2]))
    def a_pump_takes(self, owner: int, limit: int = 2) -> None:
        want = ClaimRequest(self.push.id, limit, LEASE_MS, owner)
        for row in claim.claim([want], now=self.now, slot=0).rows:
            self._goes_out(row.id, payloads.stamp(row).attempt)
            self.held.append(row)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, outcome=st.sampled_from([Outcome.DELIVERED, Outcome.TIMEOUT]))
    def the_consumer_answers(self, pick: int, outcome: Outcome) -> None:
        """Respond with a provider id, perhaps too late."""
        row = self.held[-1 - pick % min(len(self.held), 3)]
        mode = acks.mode_of(ACK)
        assert mode is not None
        name = f"wamid.{row.id}"
        if outcome is Outcome.DELIVERED:
            result = Result(row, mode.answered, outcome, self.now, "test", provider_id=name)
        else:
            result = Result(row, _failed(row), outcome, self.now, "test")
        if settle.settle([result], now=self.now, slot=0) and result.provider_id in self.kept:
            self.kept.discard(name)
            self.confirmed.add(row.id)

    @rule(owner=st.sampled_from([1, 2]))
    def a_pump_dies(self, owner: int) -> None:
        release.release_owner(owner, now=self.now, slot=0)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, ok=st.booleans())
    def the_consumer_says(self, pick: int, ok: bool) -> None:
        row = self.held[-1 - pick % min(len(self.held), 3)]
        self._heard(row.id, ok, callbacks.acknowledge(row.id, ok=ok, now=self.now).result)

    @rule(ok=st.booleans(), is_released=st.booleans())
    def a_pump_is_killed_after_an_early_word(self, ok: bool, is_released: bool) -> None:
        """Acknowledge before the response; the pump's lease is released or lapses; claim again."""
        self.messages_come()
        self.a_pump_takes(1)
        self.the_consumer_says(0, ok)
        if is_released:
            self.a_pump_dies(1)
        self.time_passes(11)
        self.a_pump_takes(2)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, ok=st.booleans())
    def the_provider_calls_back(self, pick: int, ok: bool) -> None:
        row = self.held[-1 - pick % min(len(self.held), 3)]
        name = f"wamid.{row.id}"
        (told,) = correlations.find(self.push.id, [ProviderStatus(name, ok)], self.now)
        if told.delivery_id is None:
            if told.result is AckResult.EARLY and ok:
                self.kept.add(name)
            return
        assert told.delivery_id == row.id
        self._heard(row.id, ok, callbacks.acknowledge(row.id, ok=ok, now=self.now).result)

    @rule()
    def a_foreign_callback_comes_before_its_delivery(self) -> None:
        """A callback comes for an id that the provider gives to a later message."""
        self.foreign += 1
        name = f"foreign.{self.foreign}"
        before = _early_words()
        correlations.find(self.push.id, [ProviderStatus(name, ok=True)], self.now)
        assert _early_words() == before, "nobody knows yet what it is about"
        self.time_passes(31)
        self.messages_come()
        self.a_pump_takes(1, limit=1000)
        mode = acks.mode_of(ACK)
        assert mode is not None
        row = next(row for row in self.held if row.accepted_at == self.now)
        result = Result(row, mode.answered, Outcome.DELIVERED, self.now, "", provider_id=name)
        assert settle.settle([result], now=self.now, slot=0) == 1
        assert Delivery.objects.get(id=row.id).state == "awaiting_ack"

    @rule(worker=WORKER, resume=st.booleans())
    def a_worker_receives(self, worker: str, resume: bool) -> None:
        view = config_cache.consumers()[self.pull.id]
        for one in receiving.receive(view, ReceiveRequest(2, LEASE_MS, worker, resume=resume)):
            self._goes_out(one.row.id, pull.received_message(one, view, settled=False)["attempt"])
            self.received_message.append(one)

    @precondition(lambda self: self.received_message)
    @rule(pick=PICK, outcome=st.sampled_from([Outcome.DELIVERED, Outcome.REJECTED]))
    def a_worker_settles(self, pick: int, outcome: Outcome) -> None:
        """Settle with the current lease or with a former one."""
        one = self.received_message[-1 - pick % min(len(self.received_message), 6)]
        lease = leasing.lease_of(one.token)
        assert lease is not None
        before = Delivery.objects.get(id=one.row.id)
        if not leasing.end([lease], outcome):
            return
        newest = next(it for it in reversed(self.received_message) if it.row.id == one.row.id)
        is_repeat = before.version == Delivery.objects.get(id=one.row.id).version
        assert is_repeat or newest.token == one.token, "an old lease has settled"
        if outcome is Outcome.DELIVERED:
            self.confirmed.add(one.row.id)

    @rule(worker=WORKER, outcome=st.sampled_from([Outcome.DELIVERED, Outcome.REJECTED]))
    def a_worker_is_back_before_its_former_self_is_gone(
        self, worker: str, outcome: Outcome
    ) -> None:
        self.messages_come()
        self.a_worker_receives(worker, resume=False)
        held = len(self.received_message)
        self.a_worker_receives(worker, resume=True)
        self.a_worker_settles(len(self.received_message) - held, outcome)

    # -- invariants ----------------------------------------------------------------------------

    @invariant()
    def counters_are_true(self) -> None:
        if hasattr(self, "channel"):
            assert_counters_are_true()

    @invariant()
    def what_is_confirmed_stays_so(self) -> None:
        if not hasattr(self, "channel"):
            return
        rows = Delivery.objects.filter(id__in=self.confirmed)
        waiting = set(rows.exclude(state="delivered").values_list("state", flat=True))
        assert waiting <= {"in_flight"}, "an early word waits for the end of its attempt"

    # -- helpers -------------------------------------------------------------------------------

    def _goes_out(self, delivery_id: int, number: int) -> None:
        assert delivery_id not in self.confirmed, "it was acknowledged"
        last = self.numbers.get(delivery_id, 0)
        assert number > last, "a later try has the number of an earlier one"
        self.numbers[delivery_id] = number

    def _heard(self, delivery_id: int, ok: bool, heard: AckResult) -> None:
        if ok and heard in HEARD:
            self.confirmed.add(delivery_id)


def _failed(row: ClaimedDelivery) -> Transition:
    return acks.refused(
        failure_count=row.failure_count,
        max_attempts=100,
        policy=PRESETS["fast"],
        jitter=0.5,
        reason=Reason.RETRY,
    )


def _early_words() -> float:
    return float(metrics.ACKS.labels("early")._value.get())


@pytest.mark.trap("acknowledged, and sent again")
@pytest.mark.slow("a state machine over real tables")
@pytest.mark.django_db(transaction=True)
def test_no_attempt_after_an_acknowledgement_and_no_attempt_number_twice() -> None:
    run(Words, examples=examples(few=8, many=20), steps=40)
