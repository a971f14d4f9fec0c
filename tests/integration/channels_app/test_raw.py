"""Statements that go to the database without Django's ORM."""

from datetime import UTC, datetime

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction

from channels_app.database import raw
from channels_app.models import Channel, Message, MessageBody, new_id
from delivery.models import Attempt
from tests.support.factories import ChannelFactory, MessageFactory

INSERT = raw.Insert(
    Message, numbers=("id", "channel_id"), values=("headers", "accepted_at", "due_at", "event_type")
)


@pytest.mark.django_db
@pytest.mark.parametrize("microsecond", [0, 120, 999_999])
def test_an_unnamed_column_gets_the_fields_default(microsecond: int) -> None:
    channel = ChannelFactory.create()
    now = datetime(2026, 3, 1, 12, 0, 0, microsecond, tzinfo=UTC)
    by_orm = Message.objects.create(
        id=new_id(), channel=channel, accepted_at=now, due_at=now, event_type="it's 100 % \\ ✓"
    )
    number, at = new_id(), raw.text(now)
    INSERT.write([((number, channel.id), ("{}", at, at, by_orm.event_type))])
    rows = Message.objects.filter(id__in=[by_orm.id, number]).values()
    first, second = ({**row, "id": 0} for row in rows)
    assert first == second
    ((text,),) = raw.read(
        f"SELECT CAST(due_at AS CHAR) FROM {Message._meta.db_table} WHERE id = %s", [number]
    )
    assert raw.instant(text) == now


def test_a_column_without_a_default_must_be_named() -> None:
    with pytest.raises(AssertionError):
        raw.Insert(MessageBody, numbers=(), values=("key_id",), same={"message_id": "x' OR 'x"})


def test_statements_are_split_by_rows_and_bytes() -> None:
    insert = raw.Insert(MessageBody, numbers=("message_id",), values=("data", "key_id"))
    half = b"x" * (raw.MAX_BYTES // 2)
    rows = [((number,), (half, "k")) for number in range(5)]
    # Two values of each row count: long values go to the driver unchanged.
    assert [len(values) for _, values in insert.statements(rows)] == [4, 4, 2]
    rows = [((number,), (b"", "k")) for number in range(raw.MAX_ROWS + 1)]
    assert [len(values) for _, values in insert.statements(rows)] == [raw.MAX_ROWS, 1]


def test_long_headers_are_split_too() -> None:
    half = '"' + "x" * (raw.MAX_BYTES // 2) + '"'
    rows = [((number, 1), (half, "a", "b", "c")) for number in range(5)]
    assert [len(values) // 4 for _, values in INSERT.statements(rows)] == [1] * 5


@pytest.mark.django_db
def test_binary_values_are_stored_unchanged() -> None:
    bodies = {new_id(): body for body in (b"", b"'\\%s\0", bytes(range(256)))}
    insert = raw.Insert(MessageBody, numbers=("message_id",), values=("key_id", "data"))
    insert.write([((number,), ("it's", body)) for number, body in bodies.items()])
    rows = MessageBody.objects.in_bulk(bodies)
    assert {number: bytes(rows[number].data) for number in bodies} == bodies
    assert {row.key_id for row in rows.values()} == {"it's"}


def test_simple_values_are_inlined_in_the_statement() -> None:
    insert = raw.Insert(
        Attempt, numbers=("id", "delivery_id", "number"), values=("error", "status_code", "worker")
    )
    ((sql, values),) = insert.statements(
        [((1, 2, 3), ("", 200, "%s")), ((2, 2, 4), ("'", None, "w"))]
    )
    assert "(1, 2, 3, '', 200, %s, " in sql
    assert "(2, 2, 4, %s, NULL, %s, " in sql
    assert values == ["%s", "'", "w"]


def test_non_integers_are_refused_in_raw_statements() -> None:
    with pytest.raises(TypeError):
        raw.listed(["1"])  # type: ignore[list-item]  # the fault that is meant


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("length", [1, raw.MAX_BYTES])
def test_several_statements_return_a_row_count_each(length: int) -> None:
    channel = ChannelFactory.create()
    messages = [MessageFactory.create(channel=channel) for _ in range(3)]
    table = Message._meta.db_table
    long = "x" * length
    found = raw.execute_all(
        [
            (f"UPDATE {table} SET priority = 1 WHERE id <= %s", [messages[1].id]),
            (f"UPDATE {table} SET priority = 2 WHERE event_type = %s", [long]),
            (f"UPDATE {table} SET priority = 1 WHERE id <= %s", [messages[2].id]),
        ]
    )
    assert found == [2, 0, 3]


@pytest.mark.django_db(transaction=True)
def test_a_later_statement_that_fails_undoes_the_earlier_ones() -> None:
    channel = ChannelFactory.create()
    statements = [
        (f"UPDATE {Channel._meta.db_table} SET slug = %s WHERE id = {channel.id}", ["changed"]),
        ("UPDATE no_such_table SET slug = 1", []),
    ]
    with pytest.raises(DatabaseError), transaction.atomic():
        raw.execute_all(statements)
    assert Channel.objects.get().slug == channel.slug


@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_skipped_statements_prevent_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel = ChannelFactory.create()
    table = Channel._meta.db_table
    statements = [
        (f"UPDATE {table} SET slug = %s WHERE id = {channel.id}", [slug]) for slug in ("a", "b")
    ]
    # A killed query may cancel the rest of its packet without any error.
    monkeypatch.setattr(type(connection.cursor().cursor), "nextset", lambda cursor: None)
    with pytest.raises(OperationalError), transaction.atomic():
        raw.execute_all(statements)
    monkeypatch.undo()
    connection.close()
    assert Channel.objects.get().slug == channel.slug
