"""What lists and replays read comes in the order of an index, however large the tables are."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from channels_app import clock
from channels_app.models import Consumer
from delivery.rules.asker import Asker
from delivery.steps import cancel, replay
from tests.delivery.books import make_deliveries
from tests.delivery.calling import Api
from tests.factories import ConsumerFactory

# ANALYZE commits on MariaDB: a rollback would leave the rows to other tests.
pytestmark = pytest.mark.django_db(transaction=True)
LARGE = ("delivery_delivery", "channels_app_message")


@pytest.fixture
def consumer() -> Consumer:
    """One consumer among others, with enough rows for a database to think about it."""
    found = ConsumerFactory.create()
    for other in (ConsumerFactory.create(channel=found.channel), found, ConsumerFactory.create()):
        for state in ("dead", "delivered", "cancelled"):
            make_deliveries(other, 400, state=state, outcome="timeout", event_type="a.b")
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute(f"ANALYZE TABLE {', '.join(LARGE)}")
            cursor.fetchall()
        else:
            cursor.execute("ANALYZE")
    return found


def sorted_or_scanned(queries: Any) -> list[str]:
    """Reads of the large tables that sort rows or look at all of them."""
    bad = []
    for query in queries:
        sql = query["sql"]
        if not sql.startswith("SELECT") or not any(table in sql for table in LARGE):
            continue
        with connection.cursor() as cursor:
            if connection.vendor == "mysql":
                cursor.execute(f"EXPLAIN {sql}")
                names = [column[0] for column in cursor.description]
                for row in cursor.fetchall():
                    plan = dict(zip(names, row, strict=True))
                    extra = plan["Extra"] or ""
                    if "filesort" in extra or "temporary" in extra or plan["type"] == "ALL":
                        bad.append(f"{plan}: {sql}")
            else:
                cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
                for *_, detail in cursor.fetchall():
                    if "TEMP B-TREE" in detail or detail.startswith("SCAN delivery"):
                        bad.append(f"{detail}: {sql}")
    return bad


@pytest.mark.parametrize(
    "tail",
    [
        "deliveries",
        "deliveries?state=dead",
        "deliveries?outcome=gone",
        "deliveries?state=delivered&event_type=x.y",
        "deliveries?from=2026-01-01T00:00:00Z&to=2027-01-01T00:00:00Z",
        "dead-letters",
        "dead-letters?outcome=timeout",
        "messages",
        "messages?after=msg_0000000000000",
    ],
)
def test_a_consumers_lists(consumer: Consumer, tail: str) -> None:
    path = f"/channels/{consumer.channel.slug}/consumers/{consumer.client_id}/{tail}"
    api = Api(admin=True)

    with CaptureQueriesContext(connection) as captured:
        assert api.get(path).status_code == 200

    assert captured.captured_queries
    assert sorted_or_scanned(captured.captured_queries) == []


@pytest.mark.parametrize("scopes", [["admin"], ["read"]])
@pytest.mark.parametrize(
    "tail",
    ["", "?event_type=a.b", "?state=accepted", "?from=2026-01-01T00:00:00Z", "?event_type=x"],
)
def test_a_channels_messages(consumer: Consumer, tail: str, scopes: list[str]) -> None:
    api = Api(scopes=scopes)

    with CaptureQueriesContext(connection) as captured:
        assert api.get(f"/channels/{consumer.channel.slug}/messages{tail}").status_code == 200

    assert sorted_or_scanned(captured.captured_queries) == []


def test_slices_of_replays_and_the_sweep_of_removed_consumers(consumer: Consumer) -> None:
    form = {"channel": consumer.channel.slug, "consumer": consumer.client_id}
    late = ConsumerFactory.create(channel=consumer.channel)
    wanted = [
        replay.parse(form),
        replay.parse({**form, "outcomes": ["gone"], "states": ["dead", "delivered"]}),
        replay.parse({}, kind="missing").within(consumer.channel.slug, late.client_id),
    ]
    asker = Asker("command")
    jobs = [replay.create(one, replay.consumers_of(one), asker, now=clock.now()) for one in wanted]

    with CaptureQueriesContext(connection) as captured:
        assert [replay.run_slice(job, clock.now(), 100) for job in jobs] == [100, 0, 100]
        consumer.state = Consumer.State.RETIRED
        consumer.save()
        assert cancel.cancel_retired(clock.now(), 0, 50) == 50

    assert sorted_or_scanned(captured.captured_queries) == []
