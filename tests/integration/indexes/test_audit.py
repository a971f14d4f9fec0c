"""Query plans of a reconciliation: key ranges use indexes, fetched rows stay bounded."""

from typing import Any

import pytest

from channels_app.database import clock, raw
from channels_app.models import Consumer
from delivery.core.reconciliation import MismatchPlace
from delivery.maintenance import counters, overdue, reconciliation_scope
from delivery.maintenance.reconciliations import Reconciler, Wanted
from delivery.models import Delivery
from tests.integration.indexes.judge import judging
from tests.integration.indexes.world import World

pytestmark = pytest.mark.django_db(transaction=True)
SLICE = 40


@pytest.mark.slow("explains every statement of an audit")
def test_every_statement_of_an_audit(large: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciliation_scope, "SLICE", SLICE)
    with judging() as judge:
        counters.difference(large.consumer.id)
    # Counting reads all rows of a consumer, but from its index.
    assert not [fault for fault in judge.faults if "read" not in fault.split(": ")[1]], judge.faults
    with judging() as judge:
        for judge.where, wanted in (
            ("everything", Wanted(counters=False)),
            ("one channel", Wanted(channel=large.consumer.channel, counters=False)),
            ("one consumer", Wanted(consumers=(large.consumer,), counters=False)),
        ):
            reconciler = Reconciler(wanted, now=clock.now(), most_ids=5)
            for _ in reconciler.steps():
                pass
            assert reconciler.result.looked["deliveries"]
        judge.where = "what nobody takes"
        Delivery.objects.filter(state="queued").update(due_at=clock.now())
        place = MismatchPlace(large.consumer.channel_id, large.consumer.id)
        overdue.deliveries(reconciler.result, place, clock.now())
    # All attempts of a delivery are read from its index, however many there are.
    judge.faults = [
        fault for fault in judge.faults if ": read " not in fault or "one_attempt" not in fault
    ]
    judge.accept()


def test_reconciliation_reads_a_bounded_number_of_rows(
    large: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation_scope, "SLICE", SLICE)
    fetched: list[int] = []
    read = raw.read

    def counting(sql: str, values: Any = ()) -> Any:
        rows = read(sql, values)
        fetched.append(len(rows))
        return rows

    monkeypatch.setattr(raw, "read", counting)
    # Avoids findings, whose rows are counted one by one.
    Consumer.objects.filter(id=large.consumer.id).update(event_types=[])
    reconciler = Reconciler(Wanted(counters=False), now=clock.now(), most_ids=3)
    for _ in reconciler.steps():
        pass
    assert reconciler.result.looked["messages"] > 20 * SLICE
    # There are few sums; of wrong rows, at most one key range is fetched at a time.
    assert max(fetched) <= max(2 * SLICE, 1000)
    assert all(len(off.ids) <= 3 for off in reconciler.result.off.values())
