"""The judge waits for the purge of deleted rows before it reports a fault."""

from datetime import timedelta
from threading import Timer

import pytest
from django.db import connection

from channels_app.database import clock
from delivery.models import Correlation
from tests.integration.indexes.judge import CONSTANT, judging, reads

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.mariadb]
NUMBER = 10 * CONSTANT


def somebody(*statements: str) -> None:
    """Run these in a session that stays open for a second."""
    other = connection.get_new_connection(connection.get_connection_params())
    Timer(1.0, other.close).start()
    for statement in statements:
        other.query(statement)


def look() -> None:
    list(Correlation.objects.filter(noted_at__lt=clock.now()).order_by("noted_at")[:5])


def test_deleted_rows_awaiting_purge_are_ignored() -> None:
    now = clock.now() - timedelta(days=1)
    Correlation.objects.bulk_create(
        Correlation(id=key, delivery_id=key, noted_at=now) for key in range(1, NUMBER)
    )
    # The first session delays the purge; the second one's write makes reads check young rows twice.
    somebody(
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    )
    somebody("INSERT INTO delivery_correlation (id, noted_at) VALUES (0, now())")
    Correlation.objects.filter(id__gt=0)._raw_delete("default")
    before = reads()
    look()
    assert reads() - before > CONSTANT
    with judging() as judge:
        look()
    judge.accept()
