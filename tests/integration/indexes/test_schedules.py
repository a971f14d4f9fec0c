"""Due schedules are found in one short index range, however many wait, are paused or ended."""

from datetime import timedelta

import pytest
from django.db import connection

from channels_app.database import clock
from channels_app.database.raw import execute
from channels_app.models import Channel, Schedule
from delivery.maintenance import recurring
from tests.integration.indexes import judge as judging_module
from tests.integration.indexes.judge import judging, reads
from tests.support.factories import ChannelFactory, ScheduleFactory

pytestmark = pytest.mark.django_db(transaction=True)
MANY = 500


@pytest.fixture
def channel() -> Channel:
    """A channel with many schedules that are not due."""
    channel, later = ChannelFactory.create(), clock.now() + timedelta(days=1)
    rows = [
        Schedule(
            **{"channel": channel, "name": f"{state}-{number}", "state": state},
            next_at=later + timedelta(seconds=number) if state == "active" else None,
        )
        for state in ("active", "paused", "ended")
        for number in range(MANY)
    ]
    Schedule.objects.bulk_create(rows, batch_size=500)
    word = "ANALYZE TABLE" if connection.vendor == "mysql" else "ANALYZE"
    execute(f"{word} {Schedule._meta.db_table}", ())
    return channel


def test_schedule_statements_use_indexes(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging_module, "LARGE", {Schedule._meta.db_table})
    due = clock.now() - timedelta(seconds=1)
    for number in (0, 20):
        wanted = [
            ScheduleFactory.create(channel=channel, next_at=due + timedelta(milliseconds=place)).pk
            for place in range(number)
        ]
        before = reads()
        with judging() as judge:
            # In index order, up to the limit.
            assert [row.pk for row in recurring.take(clock.now(), 10)] == wanted[:10]
            recurring.next_due_at()
        judge.accept()
        assert reads() - before < 200
