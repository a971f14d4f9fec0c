"""The benchmark's bulk-made history equals what the broker itself would have stored."""

from datetime import timedelta

import pytest
from django.db.models import Count, F

from bench.adapters import no_progress, number_in
from bench.internal import rows, statements
from bench.internal.history import History
from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import Message, MessageBody
from channels_app.registry import data_encryption
from delivery.maintenance import counters
from delivery.models import Attempt, ConsumerHealth, Counter, Delivery
from delivery.queue import claim
from delivery.queue.claim import ClaimRequest
from tests.support.pumping import recounted

pytestmark = pytest.mark.django_db(transaction=True)
URL = "http://127.0.0.1:9/take/1"


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.setattr(rows, "CHUNK", 7)
    return History(URL, longest=60)


def test_counters_counts_and_time_ordered_keys_agree_with_the_rows(history: History) -> None:
    history.finish(50, no_progress)
    history.wait(40, no_progress)

    for model in (Message, Delivery):
        rows = model.objects.order_by("id").values_list("id", "accepted_at")
        instants = [accepted_at for _, accepted_at in rows]
        assert instants == sorted(instants)
        for number, accepted_at in rows:
            unix_ms = round(accepted_at.timestamp() * 1000)
            assert 0 <= ids.created_ms(number) - unix_ms <= 2
            assert ids.from_public("dlv", ids.to_public("dlv", number)) == number
    assert ids.created_ms(Message.objects.latest("id").id) < history.created_ms

    history.fail(20, no_progress)

    assert Counter.totals() == recounted()
    assert counters.gap() == 0
    totals = Counter.totals()
    assert (totals["delivered"], totals["dead"], totals["queued"]) == (50, 50, 60)
    assert Message.objects.count() == MessageBody.objects.count() == 110
    assert Attempt.objects.count() == 120
    counted = Message.objects.annotate(found=Count("deliveries"))
    assert not counted.exclude(found=F("consumer_count")).exists()
    tried = Delivery.objects.annotate(found=Count("attempts"))
    assert not tried.exclude(found=F("attempt_count")).exists()
    body = MessageBody.objects.latest("message_id")
    assert number_in(data_encryption.decrypt_body(body.message_id, bytes(body.data))) == 0
    assert ConsumerHealth.objects.get(consumer=history.broken).circuit == "open"


def test_what_is_scheduled_is_counted_and_not_taken(history: History) -> None:
    history.wait(10, no_progress)
    history.schedule(30, no_progress)

    now = clock.now()
    assert history.steady.deliveries.filter(due_at__gt=now + timedelta(hours=12)).count() == 30
    assert Message.objects.filter(due_at__gt=now).count() == 30
    assert Counter.totals() == recounted()
    taken = claim.claim([ClaimRequest(history.steady.id, 100, 1000, 1)], now=now, slot=0)
    assert len(taken.rows) == 10


def test_it_grows_and_is_found_again(history: History) -> None:
    history.finish(10, no_progress)
    steps: list[tuple[int, int]] = []
    again = History(URL, longest=60)
    again.finish(60, lambda done, total: steps.append((done, total)))
    again.finish(60, no_progress)
    again.wait(5, no_progress)
    again.wait(5, no_progress)

    assert Counter.totals() == recounted()
    assert Message.objects.count() == 65
    assert steps[-1] == (60, 60)


def test_the_pumps_statements_find_their_work_in_it(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "BATCH", 10)
    history.wait(70, no_progress)
    found = statements.measure_pump(no_progress, samples=1)

    assert found["claim_ms"] > 0
    assert Counter.totals() == recounted()
    assert not Delivery.objects.filter(state="in_flight").exists()


@pytest.mark.mariadb
def test_minimal_statements_leave_the_counters_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "MESSAGES", 250)
    found = statements.measure_minimum(no_progress, group=4, paced=5, rate=50, pids=[])

    costs = {"commit_one", "commit_group", "claim", "settle"}
    assert found.keys() == costs | {"commit_p50", "commit_p99"}
    assert all(value > 0 for value in found.values())
    assert Counter.totals() == recounted()
    assert counters.gap() == 0
    assert Delivery.objects.filter(state="delivered").count() == 250
