"""The table of acknowledgements: the transition for every state and every result (S3-38)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from channels_app.core.backoff import Steps
from delivery.core import acks
from delivery.core.acks import AckResult, Mode
from delivery.core.lifecycle import ARROWS, FINISHED, DeliveryState, Reason, Transition

S, R = DeliveryState, Reason
POLICY = Steps((1.0,))


@pytest.mark.parametrize(
    ("state", "reason", "word"),
    [
        (S.AWAITING_ACK, R.AWAITING_ACK, AckResult.ON_TIME),
        (S.IN_FLIGHT, R.CLAIMED, AckResult.EARLY),
        (S.DELIVERED, R.ACKNOWLEDGED, AckResult.DOUBLE),
        (S.DELIVERED, R.ACK_TIMEOUT, AckResult.LATE),
        (S.DELIVERED, R.DELIVERED, AckResult.LATE),
        (S.DEAD, R.EXHAUSTED, AckResult.LATE),
        (S.CANCELLED, R.CANCELLED, AckResult.LATE),
        (S.QUEUED, R.ACK_TIMEOUT, AckResult.ON_TIME),
        (S.QUEUED, R.INTERRUPTED, AckResult.ON_TIME),
        (S.QUEUED, R.LEASE_EXPIRED, AckResult.ON_TIME),
        (S.QUEUED, R.RETRY, AckResult.LATE),
        (S.QUEUED, R.REPLAYED, AckResult.LATE),
    ],
)
@pytest.mark.seed("S3-38")
def test_an_acknowledgement_in_every_state(
    state: DeliveryState, reason: Reason, word: AckResult
) -> None:
    assert acks.ack_result(state, reason, ok=True) is word
    if state is S.QUEUED:
        assert acks.ack_result(state, reason, ok=False) is AckResult.LATE


@pytest.mark.parametrize(
    ("setting", "mode"),
    [
        (None, None),
        ({}, None),
        ({"mode": "timer", "delay_ms": 250}, Mode("timer", 0.25, "proceed")),
        (
            {"mode": "callback", "timeout_ms": 400, "on_timeout": "dead"},
            Mode("callback", 0.4, "dead"),
        ),
    ],
)
def test_how_a_consumer_acknowledges(setting: dict[str, object] | None, mode: Mode | None) -> None:
    assert acks.mode_of(setting) == mode


@given(
    on_timeout=st.sampled_from(["proceed", "retry", "dead"]),
    failures=st.integers(0, 5),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_every_sequence_follows_the_state_table(
    on_timeout: acks.OnTimeout, failures: int, jitter: float
) -> None:
    mode = Mode("callback", 1.0, on_timeout)
    common = {"failure_count": failures, "max_attempts": 3, "policy": POLICY, "jitter": jitter}
    timed_out = acks.timed_out(mode, **common)  # type: ignore[arg-type]  # of several types
    refused = acks.refused(**common, reason=R.RETRY)  # type: ignore[arg-type]  # as above
    for to in (timed_out, refused, acks.confirmed()):
        assert (S.AWAITING_ACK, to.state, to.reason) in ARROWS
        assert (to.due_in is None) == (to.state in FINISHED)
    assert (S.IN_FLIGHT, mode.answered.state, mode.answered.reason) in ARROWS
    assert acks.timed_out(None, **common).state is S.DELIVERED  # type: ignore[arg-type]  # as above


class Words(RuleBasedStateMachine):
    """A delivery that gets acknowledgements at any time: it ends once and is counted once."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.reason, self.failures = S.QUEUED, R.ACCEPTED, 0
        self.kept: bool | None = None
        self.ends = 0
        self.mode = Mode("callback", 1.0, "retry")

    def go(self, to: Transition) -> None:
        assert (self.state, to.state, to.reason) in ARROWS
        self.failures += to.charged
        self.state, self.reason = to.state, to.reason
        self.ends += to.state in FINISHED

    @precondition(lambda self: self.state is S.QUEUED)
    @rule()
    def claim(self) -> None:
        self.go(Transition(S.IN_FLIGHT, R.CLAIMED, 10.0, charged=False))

    @precondition(lambda self: self.state is S.IN_FLIGHT)
    @rule(arrived=st.booleans())
    def answer(self, arrived: bool) -> None:
        """An early acknowledgement takes precedence over the response."""
        if self.kept is True:
            self.go(acks.confirmed())
        elif not arrived or self.kept is False:
            self.go(self._refused(R.RETRY))
        else:
            self.go(self.mode.answered)
        self.kept = None

    @precondition(lambda self: self.state is S.IN_FLIGHT)
    @rule(reason=st.sampled_from([R.INTERRUPTED, R.LEASE_EXPIRED]))
    def kill(self, reason: Reason) -> None:
        """The response is lost: an early acknowledgement decides alone."""
        if self.kept is None:
            self.go(Transition(S.QUEUED, reason, 0.0, charged=False))
        else:
            self.go(acks.confirmed() if self.kept else self._refused(R.RETRY))
        self.kept = None

    @rule(ok=st.booleans())
    def word(self, ok: bool) -> None:
        before = self.state
        match acks.ack_result(self.state, self.reason, ok=ok):
            case AckResult.EARLY:
                self.kept = ok if self.kept is None else self.kept
            case AckResult.ON_TIME:
                self.go(acks.confirmed() if ok else self._refused(R.RETRY))
            case AckResult.LATE | AckResult.DOUBLE:
                assert self.state is before

    @precondition(lambda self: self.state is S.AWAITING_ACK)
    @rule()
    def time_is_over(self) -> None:
        self.go(
            acks.timed_out(
                self.mode,
                failure_count=self.failures,
                max_attempts=3,
                policy=POLICY,
                jitter=0.5,
            )
        )

    def _refused(self, reason: Reason) -> Transition:
        return acks.refused(
            failure_count=self.failures, max_attempts=3, policy=POLICY, jitter=0.5, reason=reason
        )

    @invariant()
    def it_ends_once(self) -> None:
        assert self.ends == (self.state in FINISHED)
        assert self.failures <= 3


TestWords = pytest.mark.slow("a state machine")(pytest.mark.seed("S3-37", "S3-38")(Words.TestCase))
