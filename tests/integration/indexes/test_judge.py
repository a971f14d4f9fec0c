"""The judge waits for the purge of deleted rows before it reports a fault."""

from contextlib import ExitStack, closing
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from channels_app.database import clock
from delivery.models import Correlation
from tests.integration.indexes import judge as judge_module
from tests.integration.indexes.judge import CONSTANT, judging, reads

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.mariadb]
NUMBER = 10 * CONSTANT


def somebody(*statements: str) -> Any:
    """Run these in a session of its own, which is returned."""
    other = connection.get_new_connection(connection.get_connection_params())
    for statement in statements:
        other.query(statement)
    return closing(other)


def look() -> None:
    list(Correlation.objects.filter(noted_at__lt=clock.now()).order_by("noted_at")[:5])


def test_deleted_rows_awaiting_purge_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    if not getattr(connection, "mysql_is_mariadb", False):
        pytest.skip("MySQL does not count them as read")
    if getattr(connection, "mysql_version", ()) >= (11,):
        pytest.skip("its DELETE scans the table, and waits for the other session's row")
    now = clock.now() - timedelta(days=1)
    Correlation.objects.bulk_create(
        Correlation(id=key, delivery_id=key, noted_at=now) for key in range(1, NUMBER)
    )
    is_purged = judge_module.is_purged
    with ExitStack() as sessions:
        # The first session delays the purge; the second one's write makes reads check young rows
        # twice.
        sessions.enter_context(
            somebody(
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
                "START TRANSACTION WITH CONSISTENT SNAPSHOT",
            )
        )
        sessions.enter_context(
            somebody("INSERT INTO delivery_correlation (id, noted_at) VALUES (0, now())")
        )
        Correlation.objects.filter(id__gt=0)._raw_delete("default")
        before = reads()
        look()
        assert reads() - before > CONSTANT

        def end_sessions_and_ask() -> bool:
            sessions.close()
            return is_purged()

        monkeypatch.setattr(judge_module, "is_purged", end_sessions_and_ask)
        with judging() as judge:
            look()
    judge.accept()
