"""The connection to MySQL and MariaDB: Django's promises with fewer round trips."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from broker_site import wsgi
from channels_app import transactions
from channels_app.models import Team
from tests.delivery import books

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.mariadb]


def questions() -> int:
    """What the server was asked over this connection so far, pings included."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SHOW SESSION STATUS WHERE Variable_name IN ('Questions', 'Com_admin_commands')"
        )
        return sum(int(count) for _, count in cursor.fetchall())


def asked(work: Callable[[], object]) -> int:
    """Round trips of ``work``."""
    before = questions()
    work()
    return questions() - before - 1


def store() -> None:
    with transaction.atomic():
        Team.objects.create(slug="here", name="Here")


def rename() -> None:
    with transaction.atomic():
        Team.objects.update(name="There")


def test_a_transaction_is_begin_and_commit() -> None:
    store()
    assert asked(rename) == 3
    assert Team.objects.get().name == "There"


def test_what_fails_inside_is_undone_and_the_connection_goes_on() -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        store()
        raise ZeroDivisionError
    assert Team.objects.count() == 0
    store()
    with pytest.raises(IntegrityError):
        store()
    # Alone again, a statement commits by itself.
    Team.objects.update(name="There")
    connection.close()
    assert [team.name for team in Team.objects.all()] == ["There"]


def test_savepoints_work() -> None:
    with transaction.atomic():
        store()
        with suppress(ZeroDivisionError), transaction.atomic():
            Team.objects.create(slug="gone")
            raise ZeroDivisionError
    assert [team.slug for team in Team.objects.all()] == ["here"]


def test_a_healthy_connection_is_not_asked_whether_it_is() -> None:
    connection.ensure_connection()
    assert asked(connection.is_usable) == 0
    assert connection.is_usable()


def kill() -> None:
    """Let the server hang up on us."""
    number = connection.connection.thread_id()
    rival = connection.copy()
    with rival.cursor() as cursor:
        cursor.execute(f"KILL {number}")
    rival.close()
    time.sleep(0.1)


def test_a_connection_that_the_server_closed_is_replaced_before_the_next_statement() -> None:
    connection.ensure_connection()
    kill()
    assert not connection.is_usable()
    connection.close_if_unusable_or_obsolete()  # as each request begins
    store()
    assert Team.objects.count() == 1


def test_a_connection_that_broke_in_use_is_not_taken_for_healthy() -> None:
    connection.close_if_unusable_or_obsolete()
    assert Team.objects.count() == 0  # looks at its health, once for each request
    kill()
    with pytest.raises(OperationalError):
        store()
    assert connection.connection is None or not connection.is_usable()
    connection.close_if_unusable_or_obsolete()
    store()
    assert Team.objects.count() == 1


def test_a_web_process_does_not_wait_for_ever() -> None:
    script = (
        "import broker_site.wsgi; from django.db import connection; "
        "print(connection.get_connection_params()['read_timeout'])"
    )
    environment = {**os.environ, "DATABASE_URL": books.database_url()}
    printed = subprocess.check_output([sys.executable, "-c", script], env=environment)
    assert int(printed) == wsgi.ANSWER_S


def test_an_answer_that_does_not_come_is_a_lost_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "read_timeout", 1)
    with pytest.raises(OperationalError) as caught:
        transactions.write([("SELECT SLEEP(30)", [])])
    assert transactions.is_away(caught.value)
    assert Team.objects.count() == 0
    connection.close()
