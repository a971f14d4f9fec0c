"""The connection to MySQL and MariaDB keeps Django's guarantees with fewer round trips."""

import importlib
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, ProgrammingError, connection, transaction

from broker_site.server import wsgi
from channels_app.database import raw, transactions
from channels_app.models import Team
from delivery.cluster import children, qcluster
from delivery.management.commands import broker
from tests.support.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.mariadb]


def questions() -> int:
    """Return the number of requests to the server over this connection so far, pings included."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SHOW SESSION STATUS WHERE Variable_name IN ('Questions', 'Com_admin_commands')"
        )
        return sum(int(count) for _, count in cursor.fetchall())


def asked(work: Callable[[], object]) -> int:
    """Return the number of round trips of ``work``."""
    before = questions()
    work()
    return questions() - before - 1


def store() -> None:
    with transaction.atomic():
        Team.objects.create(slug="here", name="Here")


def rename() -> None:
    with transaction.atomic():
        Team.objects.update(name="There")


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield a list of the packets that are sent over this connection."""
    sent: list[str] = []
    kind = type(connection.connection)

    def tap(name: str) -> None:
        real = getattr(kind, name)

        def spy(driver: Any, *packet: Any) -> Any:
            text = packet[0] if packet else name.upper()
            sent.append(text.decode() if isinstance(text, bytes) else text)
            return real(driver, *packet)

        patch.setattr(kind, name, spy)

    with monkeypatch.context() as patch:
        for name in ("query", "commit", "rollback"):
            tap(name)
        yield sent


def test_a_transaction_begins_with_its_first_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    store()
    with listening(monkeypatch) as sent:
        rename()
    assert [packet.partition(" ")[0] for packet in sent] == ["BEGIN;", "COMMIT"]
    assert Team.objects.get().name == "There"


def test_a_transaction_without_statements_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store()
    with listening(monkeypatch) as sent:
        with transaction.atomic():
            pass
        with suppress(ZeroDivisionError), transaction.atomic():
            raise ZeroDivisionError
        Team.objects.update(name="There")
    assert len(sent) == 1
    assert sent[0].startswith("UPDATE")


def test_last_statements_end_their_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    store()
    update = "UPDATE channels_app_team SET name = %s"
    with listening(monkeypatch) as sent, transaction.atomic():
        raw.execute_last([(update, ["A"]), (update, ["There"])])
    assert sent == [f"BEGIN; {update}; {update}; COMMIT".replace("%s", "'{}'").format("A", "There")]
    with transaction.atomic():
        Team.objects.update(name="Gone")
        transaction.set_rollback(True)
    assert Team.objects.get().name == "There", "a transaction of its own again"


def test_last_statements_that_fail_undo_all_of_their_transaction() -> None:
    store()
    insert = "INSERT INTO channels_app_team (slug, name) VALUES ('here', 'Twice')"
    with suppress(ZeroDivisionError), transaction.atomic():
        Team.objects.update(name="Gone")
        with pytest.raises(IntegrityError):
            raw.execute_last(
                [("UPDATE channels_app_team SET name = 'Gone, too'", []), (insert, [])]
            )
        raise ZeroDivisionError
    assert [team.name for team in Team.objects.all()] == ["Here"]


def test_last_statements_inside_another_transaction_leave_that_open() -> None:
    store()
    with suppress(ZeroDivisionError), transaction.atomic():
        with transaction.atomic():
            raw.execute_last([("UPDATE channels_app_team SET name = 'Gone'", [])])
        raise ZeroDivisionError
    assert Team.objects.get().name == "Here"


def test_a_first_statement_has_the_same_result_as_alone() -> None:
    store()
    with transaction.atomic():
        assert Team.objects.filter(name__contains="%").count() == 0
    with transaction.atomic():
        assert Team.objects.update(name="There") == 1
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT name FROM channels_app_team LIMIT 1")
        assert (cursor.rowcount, cursor.fetchall()) == (1, (("There",),))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany("UPDATE channels_app_team SET name = %s", [("A",), ("B",)])
    with transaction.atomic(), pytest.raises(IntegrityError), transaction.atomic():
        Team.objects.create(slug="here")
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE channels_app_team SET name = NULL")
    assert [(team.slug, team.name) for team in Team.objects.all()] == [("here", "B")]


def test_a_first_statement_that_cannot_be_quoted_begins_no_transaction() -> None:
    with suppress(ZeroDivisionError), transaction.atomic(), connection.cursor() as cursor:
        with pytest.raises(ProgrammingError):
            cursor.execute("SELECT %s", ("one", "too many"))
        Team.objects.create(slug="gone")
        raise ZeroDivisionError
    assert not Team.objects.exists()


def test_a_rollback_includes_the_first_statement() -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        Team.objects.create(slug="gone")
        raise ZeroDivisionError
    assert not Team.objects.exists()
    assert not connection.in_atomic_block


def test_a_failed_transaction_rolls_back_and_the_connection_stays_usable() -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        store()
        raise ZeroDivisionError
    assert Team.objects.count() == 0
    store()
    with pytest.raises(IntegrityError):
        store()
    # Outside a transaction, a statement commits by itself again.
    Team.objects.update(name="There")
    connection.close()
    assert [team.name for team in Team.objects.all()] == ["There"]


@pytest.mark.trap("a stricter isolation by default")
def test_sessions_turn_snapshot_isolation_off() -> None:
    """From MariaDB 11.6.2 on it is on: updates wait for rows that they do not match."""
    option = "innodb_snapshot_isolation"
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW GLOBAL VARIABLES LIKE '{option}'")
        if (row := cursor.fetchone()) is None:
            pytest.skip("this server has no such option")
        cursor.execute(f"SET GLOBAL {option} = ON")
        try:
            connection.close()
            cursor = connection.cursor()
            cursor.execute(f"SELECT @@SESSION.{option}")
            assert cursor.fetchone() == (0,)
        finally:
            connection.cursor().execute(f"SET GLOBAL {option} = {row[1]}")


def test_savepoints_work() -> None:
    with transaction.atomic():
        store()
        with suppress(ZeroDivisionError), transaction.atomic():
            Team.objects.create(slug="gone")
            raise ZeroDivisionError
    assert [team.slug for team in Team.objects.all()] == ["here"]


def test_a_healthy_connection_is_not_pinged() -> None:
    connection.ensure_connection()
    assert asked(connection.is_usable) == 0
    assert connection.is_usable()


def kill() -> None:
    """Make the server close our connection."""
    number, socket = connection.connection.thread_id(), connection.connection.fileno()
    rival = connection.copy()
    with rival.cursor() as cursor:
        cursor.execute(f"KILL {number}")
    rival.close()
    until(lambda: select.select([socket], [], [], 0)[0], "the server has closed the connection")


@pytest.mark.trap("no reconnection")
def test_a_connection_that_the_server_closed_is_replaced_before_the_next_statement() -> None:
    connection.ensure_connection()
    kill()
    assert not connection.is_usable()
    connection.close_if_unusable_or_obsolete()  # as at the start of each request
    store()
    assert Team.objects.count() == 1


def test_a_connection_that_broke_in_use_is_replaced() -> None:
    connection.close_if_unusable_or_obsolete()
    assert Team.objects.count() == 0  # checks the connection's health, once for each request
    broken = connection.connection
    kill()
    with pytest.raises(OperationalError):
        store()
    assert connection.connection is not broken or not connection.is_usable()
    connection.close_if_unusable_or_obsolete()
    store()
    assert Team.objects.count() == 1


def test_read_timeout_depends_on_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    options = connection.settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "read_timeout", None)  # undone at the end
    monkeypatch.setattr(children, "preload", lambda *, web: None)
    monkeypatch.delattr(broker, "Supervisor")
    monkeypatch.delattr(qcluster, "task_queue")

    def supervisor() -> None:
        broker.Command(stdout=StringIO()).handle(bind="127.0.0.1:0", role="worker")

    starts: list[tuple[Callable[[], object], int]] = [
        (lambda: importlib.reload(wsgi), transactions.REQUEST_TIMEOUT_S),
        (qcluster.run, transactions.ANSWER_TIMEOUT_S),
        (supervisor, transactions.ANSWER_TIMEOUT_S),
    ]
    for start, longest in starts:
        del options["read_timeout"]
        # Worker and supervisor end where they need what is missing here.
        with suppress(NameError):
            start()
        assert connection.get_connection_params()["read_timeout"] == longest


def test_a_missing_response_is_a_lost_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection.close()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict["OPTIONS"], "read_timeout", 1)
        with pytest.raises(OperationalError) as caught:
            transactions.write([("SELECT SLEEP(30)", [])])
    connection.close()  # the next one waits as long as usual
    assert raw.dialect.is_away(caught.value)
    assert Team.objects.count() == 0
