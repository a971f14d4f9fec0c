"""The audit job over lake and tables: no finding in a sound month, one for every broken row.

It must find the same as the broker's own reconciliation, where both check.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from io import StringIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from django.core.management import call_command
from django.db.models import F

from channels_app.core import ids
from channels_app.models import (
    Channel,
    ConfigVersion,
    Consumer,
    IdempotencyRecord,
    Message,
    MessageBody,
)
from delivery.models import Attempt, Delivery, LakeAudit, LakeFinding, Restore
from pipeline.broker import tables
from pipeline.contract.results import CHECKS
from pipeline.jobs import audit as job
from pipeline.settings import Settings
from tests.pipeline import archiving, month
from tests.pipeline.conftest import RunJob
from tests.pipeline.month import Month
from tests.support.factories import ConsumerFactory

pytestmark = pytest.mark.django_db(transaction=True)

ASKED = set(CHECKS)
Findings = dict[str, tuple[int, set[str]]]


@pytest.fixture
def made() -> Month:
    """A month whose channels and consumers have not changed since their registration."""
    found = month.make(messages=300)
    for row in found.consumers.values():
        Consumer.objects.filter(id=row.id).update(updated_at=row.created_at)
    Channel.objects.update(updated_at=found.since)
    ConfigVersion.bump()
    return found


def ours() -> Findings:
    """The newest audit's findings by check: how many rows, and their ids."""
    newest = LakeAudit.objects.latest("id")
    found: dict[str, tuple[int, set[str]]] = defaultdict(lambda: (0, set()))
    for row in LakeFinding.objects.filter(audit=newest):
        count, names = found[row.check_name]
        found[row.check_name] = count + row.count, names | set(row.ids)
    assert {name: count for name, (count, _) in found.items()} == {
        name: count for name, count in newest.checks.items() if count
    }
    assert newest.gap == sum(newest.checks.values())
    return dict(found)


def theirs(*arguments: str) -> Findings:
    """The findings of the broker's reconciliation, for the checks that both make."""
    out = StringIO()
    with suppress(SystemExit):
        call_command("reconcile", "--json", "--grace", "5m", *arguments, stdout=out)
    found: dict[str, tuple[int, set[str]]] = defaultdict(lambda: (0, set()))
    for it in json.loads(out.getvalue())["findings"]:
        if it["check"] in ASKED:
            count, names = found[it["check"]]
            found[it["check"]] = count + it["count"], names | set(it["ids"])
    return dict(found)


def test_a_month_is_accounted_for(made: Month, run_job: RunJob) -> None:
    result = run_job("audit")

    assert ours() == theirs() == {}
    assert (result["gap"], result["messages"]) == (0, len(made.messages))
    assert result["deliveries"] == len(made.deliveries)
    assert result["attempts"] == len(made.attempts)
    (row,) = LakeAudit.objects.all()
    assert len(row.spans) >= month.DAYS - 1
    assert sum(span[1] for span in row.spans) == row.message_count == len(made.messages)
    assert sum(span[2] for span in row.spans) == row.delivery_count


def lose_a_delivery(made: Month) -> None:
    row = made.deliveries[5]
    Attempt.objects.filter(delivery=row).delete()
    Delivery.objects.filter(id=row.id).delete()


def forget_a_consumer(made: Month) -> None:
    """Remove a delivery as if the fan-out had not known its consumer."""
    row = made.deliveries[7]
    Attempt.objects.filter(delivery=row).delete()
    Delivery.objects.filter(id=row.id).delete()
    Message.objects.filter(id=row.message_id).update(consumer_count=F("consumer_count") - 1)


def add_a_consumer(made: Month) -> None:
    Message.objects.filter(id=made.messages[3].id).update(consumer_count=9)


def leave_a_message(made: Month) -> None:
    message = made.messages[9]
    Message.objects.filter(id=message.id).update(state="accepted", consumer_count=0)
    Attempt.objects.filter(delivery__message=message).delete()
    Delivery.objects.filter(message=message).delete()


def tell_of_one_more(made: Month) -> None:
    Delivery.objects.filter(id=made.deliveries[11].id).update(attempt_count=F("attempt_count") + 1)


def renumber(made: Month) -> None:
    many = next(row for row in made.deliveries if row.attempt_count > 1)
    Attempt.objects.filter(delivery=many, number=1).update(number=0)


def lose_an_attempt(made: Month) -> None:
    many = next(row for row in made.deliveries if row.attempt_count > 1)
    Attempt.objects.filter(delivery=many, number=1).delete()


def lose_a_body(made: Month) -> None:
    dead = next(row for row in made.deliveries if row.state == "dead")
    MessageBody.objects.filter(message_id=dead.message_id).delete()
    # This body is not missed: its message was delivered to all consumers.
    open_ = {row.message_id for row in made.deliveries if row.state != "delivered"}
    done = next(it for it in made.messages if it.id not in open_)
    MessageBody.objects.filter(message_id=done.id).delete()


def lose_a_message(made: Month) -> None:
    Message.objects.filter(id=made.messages[4].id)._raw_delete("default")


def lose_a_delivery_with_attempts_left(made: Month) -> None:
    Delivery.objects.filter(id=made.deliveries[2].id)._raw_delete("default")


def lose_all_of_a_message(made: Month) -> None:
    message = made.messages[8]
    IdempotencyRecord.objects.create(
        digest="d" * 64, message_id=message.id, body_digest="", expires_at=made.until
    )
    Attempt.objects.filter(delivery__message=message).delete()
    Delivery.objects.filter(message=message).delete()
    MessageBody.objects.filter(message_id=message.id).delete()
    Message.objects.filter(id=message.id)._raw_delete("default")


def know_no_channel(made: Month) -> None:
    row = made.messages[6]
    Message.objects.filter(id=row.id).update(channel_id=987_654)


def know_no_consumer(made: Month) -> None:
    Delivery.objects.filter(id=made.deliveries[0].id).update(consumer_id=987_654)


def misdirected(made: Month) -> Delivery:
    """The delivery that ``misdirect`` changes."""
    books = made.consumers["books"].id
    return next(row for row in reversed(made.deliveries) if row.consumer_id == books)


def misdirect(made: Month) -> None:
    """Give a delivery a consumer of another channel, which the broker does not check."""
    consumer = made.consumers["steady"]
    Delivery.objects.filter(id=misdirected(made).id).update(consumer_id=consumer.id)


PLANTED: dict[Callable[[Month], None], set[str]] = {
    lose_a_delivery: {"fan_out", "missing"},
    forget_a_consumer: {"missing"},
    add_a_consumer: {"fan_out"},
    leave_a_message: {"undispatched"},
    tell_of_one_more: {"attempts"},
    renumber: {"attempts"},
    lose_an_attempt: {"attempts"},
    lose_a_body: {"bodies"},
    lose_a_message: {"orphans"},
    lose_a_delivery_with_attempts_left: {"orphans", "fan_out", "missing"},
    lose_all_of_a_message: {"lost"},
    know_no_channel: {"orphans"},
    know_no_consumer: {"orphans", "missing"},
    misdirect: {"missing"},
}


@pytest.mark.mysql
def test_what_is_off_in_the_tables_is_found_as_the_broker_finds_it(
    made: Month, run_job: RunJob
) -> None:
    for plant, checks in PLANTED.items():
        plant(made)
        assert checks <= set(theirs()), plant
    run_job("audit")
    found = ours()
    # Only the audit job checks that messages, deliveries and consumers have the same channel.
    moved = ids.to_public(ids.MESSAGE, made.messages[6].id)
    assert found.pop("unasked") == (
        2,
        {moved, ids.to_public(ids.DELIVERY, misdirected(made).id)},
    )
    assert found == theirs()
    assert set(found) == set().union(*PLANTED.values())


def test_only_the_range_that_is_asked_for_is_looked_at(made: Month, run_job: RunJob) -> None:
    since, until = made.messages[100].accepted_at, made.messages[200].accepted_at
    early, inside, late = (
        [row for row in made.deliveries if low <= row.accepted_at < high][9]
        for low, high in ((made.since, since), (since, until), (until, made.until))
    )
    for row in (early, inside, late):
        Attempt.objects.filter(delivery=row).delete()
        Delivery.objects.filter(id=row.id).delete()

    span = {"since": since.isoformat(), "until": until.isoformat()}
    result = run_job("audit", **span)

    assert ours() == theirs("--since", span["since"], "--until", span["until"])
    name = ids.to_public(ids.MESSAGE, inside.message_id)
    assert ours() == {"missing": (1, {name}), "fan_out": (1, {name})}
    assert result["messages"] == 100


def test_filters_and_late_registrations_are_known(made: Month, run_job: RunJob) -> None:
    """A consumer misses only messages that match its filter, from its registration on."""
    orders, late = made.channels[0], made.consumers["late"]
    for place, message in enumerate(made.messages):
        message.event_type = ("order.paid", "order.sent", "orders", "stock")[place % 4]
    Message.objects.bulk_update(made.messages, ["event_type"])
    wanted: dict[int, Callable[[str], bool]] = {late.id: lambda _: True}
    since = {late.id: made.joined_at}
    for name, pattern, wants in (
        ("one type", "orders", lambda it: it == "orders"),
        ("a group", "order.*", lambda it: it.startswith("order.")),
        ("everything", "*", lambda _: True),
        ("nothing", "nobody.wants.this", lambda _: False),
    ):
        row = ConsumerFactory.create(
            channel=orders, client_id=name, event_types=[pattern], created_at=made.since
        )
        Consumer.objects.filter(id=row.id).update(updated_at=made.since)
        wanted[row.id], since[row.id] = wants, made.since
    ConfigVersion.bump()
    Delivery.objects.filter(consumer=late).delete()

    run_job("audit")

    assert ours()["missing"][0] == theirs("--limit-ids", "100000")["missing"][0]
    missed: Counter[int] = Counter()
    for found in LakeFinding.objects.filter(check_name="missing"):
        missed[found.consumer_id] += found.count
    assert missed == {
        consumer: number
        for consumer, wants in wanted.items()
        if (
            number := sum(
                it.channel_id == orders.id
                and it.accepted_at >= since[consumer] + timedelta(minutes=5)
                and wants(it.event_type)
                for it in made.messages
            )
        )
    }
    assert len(missed) == 4


def test_what_the_archive_doubled_or_lost_is_found(
    made: Month, run_job: RunJob, chosen: Settings
) -> None:
    cut = made.until - timedelta(days=5)
    spoilt: dict[str, Any] = {}

    def spoil(name: str, rows: pa.Table) -> pa.Table:
        if name == "messages":
            spoilt["message"] = rows["id"][3].as_py()
            return pa.concat_tables([rows, rows.slice(3, 1)])
        if name == "deliveries":
            spoilt["delivery"], spoilt["lost"] = (
                rows["id"][0].as_py(),
                rows["message_id"][9].as_py(),
            )
            spoilt["pair"] = rows["message_id"][5].as_py()
            again = rows.slice(5, 1)
            key = rows["id"][5].as_py() + 1
            again = again.set_column(0, "id", pa.array([key], pa.int64()))
            again = again.set_column(
                again.schema.get_field_index("attempt_count"),
                "attempt_count",
                pa.array([0], pa.int32()),
            )
            spoilt["lost_delivery"] = rows["id"][9].as_py()
            kept = pc.invert(pc.equal(rows["id"], spoilt["lost_delivery"]))
            return pa.concat_tables([rows.filter(kept), rows.slice(0, 1), again])
        spoilt["attempt"] = rows["delivery_id"][-1].as_py()
        kept = pc.invert(pc.equal(rows["delivery_id"], spoilt["lost_delivery"]))
        rows = rows.filter(kept)
        return pa.concat_tables([rows, rows.slice(rows.num_rows - 1, 1)])

    archiving.archive(chosen, cut, spoil)
    # A second delivery of one message, far from those above.
    high = tables.first_key(cut) - 1000
    row = [it for it in made.deliveries if it.state == "delivered" and it.id < high][-30]
    again = deliver_again(made, row)
    run_job("audit", whole_since=made.since.isoformat())
    found = ours()
    public = ids.to_public
    assert found == {
        "doubled": (
            5,
            {
                public("msg", row.message_id),
                public("msg", spoilt["message"]),
                public("msg", spoilt["pair"]),
                public("dlv", spoilt["delivery"]),
                public("dlv", spoilt["attempt"]),
            },
        ),
        "missing": (1, {public("msg", spoilt["lost"])}),
        "fan_out": (1, {public("msg", spoilt["lost"])}),
    }
    # Unless told since when the lake is complete, the job blames retention for missing rows.
    # And what somebody requested a second time is not doubled.
    Restore.objects.create(
        run_id=1,
        consumer_id=row.consumer_id,
        state="finished",
        requested_by="tests",
        low=row.message_id,
        high=row.message_id,
        first_key=again.id,
        last_key=again.id,
        created_at=made.until,
    )
    run_job("audit")
    count, names = found["doubled"]
    assert ours() == {"doubled": (count - 1, names - {public("msg", row.message_id)})}


def deliver_again(made: Month, row: Delivery) -> Delivery:
    """Store a second delivery of the same message to the same consumer."""
    again = Delivery(
        id=tables.first_key(made.until),
        message_id=row.message_id,
        consumer_id=row.consumer_id,
        channel_id=row.channel_id,
        due_at=made.until,
        accepted_at=row.accepted_at,
    )
    again.save(force_insert=True)
    return again


def test_what_only_moves_while_it_is_read_is_not_off(
    made: Month, run_job: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job queries the tables again before it reports a finding."""
    row = made.deliveries[11]
    Delivery.objects.filter(id=row.id).update(attempt_count=F("attempt_count") + 1)
    lose_a_delivery(made)
    look = job._spans

    def mended(*arguments: Any) -> Any:
        spans = look(*arguments)
        Delivery.objects.filter(id=row.id).update(attempt_count=row.attempt_count)
        return spans

    monkeypatch.setattr(job, "_spans", mended)
    run_job("audit")
    assert set(ours()) == {"fan_out", "missing"}


def test_a_key_is_written_as_the_broker_writes_it() -> None:
    for key in (0, 1, 123_456_789_012_345_678, (1 << 63) - 1):
        assert tables.public_id("msg", key) == ids.to_public(ids.MESSAGE, key)
