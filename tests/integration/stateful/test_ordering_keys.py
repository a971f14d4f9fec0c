"""After any sequence of steps, one delivery of an ordering key goes at a time, in order (S3-33)."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from channels_app.core.errors import Conflict
from channels_app.database import clock
from channels_app.models import Message, MessageBody
from delivery import replay
from delivery.core.lifecycle import ClaimAllowance, ClaimedDelivery, DirectClaim
from delivery.models import Attempt, Counter, Delivery, OrderingKey, OrderingWaiter
from delivery.queue import cancel, fanout, ordering_keys, release
from tests.integration.stateful.running import run
from tests.integration.stateful.test_deliveries import EXAMPLES
from tests.support.ordering import ENDS, LEASE_MS, check, end, take
from tests.support.principals import acting
from tests.support.pumping import make_channel, make_consumer, publish

ALICE = acting("user:alice", "a test")
PICK = st.integers(0, 1 << 16)
KEYS = st.sampled_from(["", "A", "B"])


class KeyRows(RuleBasedStateMachine):
    """Real steps on the real database. Sweeps are included, but never needed."""

    @initialize(head_of_line=st.sampled_from(["skip", "block"]))
    def begin(self, head_of_line: str) -> None:
        for model in (
            Attempt,
            Delivery,
            Counter,
            OrderingKey,
            OrderingWaiter,
            MessageBody,
            Message,
        ):
            model.objects.all().delete()
        self.consumer = make_consumer(
            make_channel(), "http://127.0.0.1:9/", ordering=True, head_of_line=head_of_line
        )
        self.held: list[ClaimedDelivery] = []
        self.last: dict[str, int] = {}
        self.now = clock.now() + timedelta(seconds=1)

    @rule(seconds=st.sampled_from([1, 11, 61]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(key=KEYS, count=st.integers(1, 3), lasts=st.sampled_from([None, None, None, 5]))
    def accept(self, key: str, count: int, lasts: int | None) -> None:
        expires_at = self.now + timedelta(seconds=lasts) if lasts else None
        publish(self.consumer.channel, *[b"x"] * count, ordering_key=key, expires_at=expires_at)

    @rule(is_taking=st.booleans())
    def fan_out(self, is_taking: bool) -> None:
        def leave(counts: Mapping[int, int]) -> dict[int, ClaimAllowance]:
            return dict.fromkeys(counts, ClaimAllowance(2, LEASE_MS))

        taker = DirectClaim(1, self.now, leave) if is_taking else None
        self._took(fanout.fan_out(100, 0, taker).claimed)

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        self._took(take(self.consumer, self.now, limit))

    @precondition(lambda self: self.held)
    @rule(picks=st.lists(PICK, min_size=1, max_size=3), how=st.sampled_from(sorted(ENDS)))
    def settle(self, picks: list[int], how: str) -> None:
        """Settle some claims, in time or late, and perhaps twice."""
        rows = {row.id: row for row in (self.held[pick % len(self.held)] for pick in picks)}
        end(rows.values(), how, self.now)

    @rule()
    def a_pump_dies(self) -> None:
        release.release_owner(1, now=self.now, slot=0)

    @precondition(lambda self: Delivery.objects.filter(consumer=self.consumer).exists())
    @rule(pick=PICK, what=st.sampled_from(["cancel", "replay"]))
    def repair(self, pick: int, what: str) -> None:
        rows = Delivery.objects.filter(consumer=self.consumer).order_by("id")
        row = rows[pick % len(rows)]
        with suppress(Conflict):
            if what == "cancel":
                cancel.cancel_one(row.id, ALICE, now=self.now)
            else:
                replay.replay_one(row.id, ALICE, now=self.now)

    @precondition(lambda self: OrderingKey.objects.exists())
    @rule(pick=PICK, what=st.sampled_from(["pause", "resume", "skip"]))
    def hold(self, pick: int, what: str) -> None:
        rows = list(OrderingKey.objects.order_by("id"))
        key_row = rows[pick % len(rows)]
        if what == "pause":
            ordering_keys.pause(key_row.id, ALICE, now=self.now)
        elif what == "resume":
            ordering_keys.resume(key_row.id, ALICE, now=self.now)
        else:
            with suppress(Conflict):
                ordering_keys.skip(key_row.id, key_row.head_id or 0, ALICE, now=self.now)

    @rule()
    def sweep(self) -> None:
        assert list(ordering_keys.repair(self.now)) == [], (
            "nothing but a failure makes it necessary"
        )

    @invariant()
    def one_of_each_key_may_go(self) -> None:
        check()

    def _took(self, rows: list[ClaimedDelivery]) -> None:
        """Check that first attempts go in the order of acceptance."""
        self.held += rows
        for row in rows:
            if row.ordering_key and row.attempt == 1 and not row.replayed:
                assert row.message_id > self.last.get(row.ordering_key, 0)
                self.last[row.ordering_key] = row.message_id

    def teardown(self) -> None:
        """Check that in the end all is delivered except what a person holds."""
        if not hasattr(self, "now"):
            return
        for key_row in OrderingKey.objects.all():
            ordering_keys.resume(key_row.id, ALICE, now=self.now)
            if key_row.blocked_at:
                ordering_keys.skip(key_row.id, key_row.head_id or 0, ALICE, now=self.now)
        open_ones = Delivery.objects.filter(consumer=self.consumer).exclude(
            state__in=["delivered", "dead", "cancelled"]
        )
        for _ in range(200):
            self.now += timedelta(seconds=61)
            made = fanout.fan_out(100, 0)
            rows = take(self.consumer, self.now)
            self._took(rows)
            end(rows, "delivered", self.now)
            if not (made.message_count or open_ones.exists()):
                break
        assert not open_ones.exists()
        assert not OrderingKey.objects.exists()


@pytest.mark.slow("a state machine over real tables")
@pytest.mark.django_db(transaction=True)
@pytest.mark.seed("S3-33", "S3-37")
def test_ordering_keys() -> None:
    run(KeyRows, examples=EXAMPLES, steps=30)
