"""Accept: what is stored, and that callers in one group commit get the same as alone."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError, OperationalError, connection, models

from channels_app.core import times
from channels_app.database import clock, raw, transactions
from channels_app.ingest import accept
from channels_app.ingest.accept import Accepted, Publication
from channels_app.models import IdempotencyRecord, Message, MessageBody
from channels_app.registry import data_encryption
from channels_app.signals import message_accepted
from tests.integration.channels_app.calls import PATIENCE_S, Call
from tests.support import errors
from tests.support.pumping import make_channel, view_of
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


def start(view: Any, *publications: Publication, producer_id: int | None = None) -> Call:
    """Accept one publication in another thread."""
    return Call(lambda: accept.accept(view, producer_id, publications)[0])


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Call]]:
    """Hold the leader, so that callers started in this block form one group when it ends."""
    go, begun, real = threading.Event(), threading.Event(), transactions.write

    def write(statements: Any) -> None:
        begun.set()
        assert go.wait(PATIENCE_S)
        real(statements)

    queued: list[Call] = []

    def call(view: Any, *publications: Publication, **more: Any) -> Call:
        made = start(view, *publications, **more)
        queued.append(made)
        until(lambda: len(accept._group_commit._waiting) == len(queued), "the caller waits")
        return made

    with monkeypatch.context() as patch:
        patch.setattr(transactions, "write", write)
        leader = start(view_of(make_channel()), Publication(b"leader"))
        until(begun.is_set, "the leader writes")
        try:
            yield call
        finally:
            go.set()
            leader.outcome()
            for made in queued:
                made.outcome()


def test_a_message_does_not_wait_for_a_batch_to_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, commit = threading.Event(), threading.Event(), accept._commit

    def slow(orders: Any) -> Any:
        if len(orders[0].publications) > accept.FEW_MESSAGES:
            begun.set()
            assert go.wait(PATIENCE_S)
        return commit(orders)

    monkeypatch.setattr(accept, "_commit", slow)
    monkeypatch.setattr(accept._group_commit, "_work", slow)
    view = view_of(make_channel())
    batch = start(view, *[Publication(b"x")] * (accept.FEW_MESSAGES + 1))
    until(begun.is_set, "the batch is being stored")
    alone = start(view, Publication(b"x"))
    try:
        until(Message.objects.exists, "the message is stored")
    finally:
        go.set()
    assert (alone.outcome().conflict, batch.outcome().conflict) == (False, False)
    assert Message.objects.count() == accept.FEW_MESSAGES + 2


@pytest.mark.parametrize(("few_s_ago", "pauses"), [(0.0, True), (2 * accept.FEW_S, False)])
def test_batches_pause_only_while_few_messages_are_published(
    monkeypatch: pytest.MonkeyPatch, few_s_ago: float, pauses: bool
) -> None:
    now, slept = [1_000.0], list[float]()

    def commit(orders: object) -> list[Any]:
        now[0] += 0.03
        return []

    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(accept, "_commit", commit)
    batches = accept._Batches()
    batches.few_at = 1_000.0 - few_s_ago
    for _ in range(3):
        batches.commit([])
    assert slept == pytest.approx([0.03] * 2 if pauses else [])


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the groups in the order in which they were tried; single retries count too."""
    sizes: list[int] = []
    real = accept._group_commit._work

    def work(orders: Any) -> Any:
        sizes.append(len(orders))
        return real(orders)

    monkeypatch.setattr(accept._group_commit, "_work", work)
    return sizes


def body_of(result: Accepted) -> bytes:
    row = MessageBody.objects.get(message_id=result.message_id)
    return data_encryption.decrypt_body(result.message_id, bytes(row.data))


def defaults(model: type[models.Model], *, but: set[str]) -> dict[str, Any]:
    """Return the model's defaults of all columns except ``but``."""
    columns = {field.attname: field for field in model._meta.concrete_fields}
    assert but <= set(columns)
    return {name: field.get_default() for name, field in columns.items() if name not in but}


def test_raw_insert_stores_the_same_columns_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 3, 1, 12, 30, 15, 1, tzinfo=UTC)
    monkeypatch.setattr(clock, "now", lambda: now)
    channel = make_channel()
    publication = Publication(
        body="grün\0'\\%s".encode(),
        content_type="text/plain",
        idempotency_key="k%s'\"\\",
        event_type="order.created",
        priority=7,
        delay_ms=1500,
        expires_at=now + timedelta(hours=1),
        ordering_key="o\N{TRUMPET}",
        headers={"X-Name": "ü%(a)s'"},
    )

    (result,) = accept.accept(view_of(channel), 42, [publication])

    row = Message.objects.get()
    given = {
        "id": result.message_id,
        "channel_id": channel.id,
        "producer_id": 42,
        "event_type": "order.created",
        "priority": 7,
        "ordering_key": "o\N{TRUMPET}",
        "idempotency_key": "k%s'\"\\",
        "content_type": "text/plain",
        "headers": row.headers,
        "body_bytes": len(publication.body),
        "accepted_at": now,
        "due_at": times.ceil_ms(now + timedelta(milliseconds=1500)),
        "expires_at": now + timedelta(hours=1),
    }
    expected = given | defaults(Message, but=set(given))
    assert {name: getattr(row, name) for name in expected} == expected
    assert result == Accepted(row.id, False, False, row.due_at)
    assert data_encryption.headers_of(row) == publication.headers
    assert body_of(result) == publication.body
    record = IdempotencyRecord.objects.get()
    window = timedelta(seconds=view_of(channel).idempotency_window_s)
    assert (record.message_id, record.expires_at) == (row.id, now + window)


def test_callers_who_share_a_commit_get_their_own_results(
    monkeypatch: pytest.MonkeyPatch, groups: list[int]
) -> None:
    channels = [make_channel() for _ in range(3)]
    woken: list[tuple[int, set[int]]] = []

    def wake(sender: Any, *, channel_id: int, message_ids: list[int], **_: Any) -> None:
        woken.append((channel_id, set(message_ids)))

    message_accepted.connect(wake)
    with held(monkeypatch) as call:
        woken.clear()
        calls = [
            (n, call(view_of(channels[n % 3]), Publication(b"%d" % n), producer_id=n))
            for n in range(9)
        ]

    message_accepted.disconnect(wake)
    for n, one in calls:
        result = one.outcome()
        row = Message.objects.get(id=result.message_id)
        assert body_of(result) == b"%d" % n
        assert (row.channel_id, row.producer_id) == (channels[n % 3].id, n)
    assert groups == [1, 9]
    # The leader's own channel, then each channel of the group once.
    assert dict(woken[1:]) == {
        channel.id: {one.outcome().message_id for n, one in calls if channels[n % 3] == channel}
        for channel in channels
    }


def test_a_key_repeated_within_a_group_stores_one_message(
    monkeypatch: pytest.MonkeyPatch, groups: list[int]
) -> None:
    view, other = view_of(make_channel()), view_of(make_channel())
    with held(monkeypatch) as call:
        first = call(view, Publication(b"x", idempotency_key="k"))
        again = call(view, Publication(b"x", idempotency_key="k"))
        changed = call(view, Publication(b"y", idempotency_key="k"))
        elsewhere = call(other, Publication(b"y", idempotency_key="k"))

    stored = first.outcome()
    assert stored == Accepted(stored.message_id, False, False, stored.due_at)
    assert again.outcome() == Accepted(stored.message_id, True, False, stored.due_at)
    assert changed.outcome() == Accepted(stored.message_id, False, True, stored.due_at)
    assert elsewhere.outcome().message_id != stored.message_id
    assert groups == [1, 4]
    assert Message.objects.count() == 3


@pytest.mark.parametrize(("scope", "stored"), [("producer", 2), ("channel", 1)])
def test_producers_share_their_keys_where_the_channel_says_so(scope: str, stored: int) -> None:
    view = view_of(make_channel(idempotency_scope=scope))
    publication = Publication(b"x", idempotency_key="k")

    (first,) = accept.accept(view, 1, [publication])
    (second,) = accept.accept(view, 2, [publication])

    assert second.duplicate is (stored == 1)
    assert len({first.message_id, second.message_id}) == stored
    assert Message.objects.count() == IdempotencyRecord.objects.count() == stored
    assert accept.earlier_result(view, 2, publication) == second._replace(duplicate=True)


def test_a_failed_message_does_not_fail_others_in_its_group(
    monkeypatch: pytest.MonkeyPatch, groups: list[int]
) -> None:
    view = view_of(make_channel())
    with held(monkeypatch) as call:
        good = [call(view, Publication(b"%d" % n, idempotency_key=f"k{n}")) for n in range(3)]
        bad = call(view, Publication(b"bad", priority=11, idempotency_key="bad"))

    assert isinstance(bad.outcome(), IntegrityError)
    assert [body_of(call.outcome()) for call in good] == [b"0", b"1", b"2"]
    assert groups == [1, 4, 1, 1, 1, 1]
    assert Message.objects.count() == MessageBody.objects.count() == 4
    assert IdempotencyRecord.objects.count() == 3


def test_a_key_stored_by_another_process_meanwhile_fails_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel = make_channel()
    view = view_of(channel)
    real, rival = accept._taken, Publication(b"x", idempotency_key="k")
    calls: list[int] = []

    def taken(digests: set[str], now: datetime) -> Any:
        found = real(digests, now)
        calls.append(len(digests))
        if calls == [2]:
            with monkeypatch.context() as patch:
                patch.setattr(accept, "_taken", real)
                accept._commit([accept._Order(view, None, [rival])])
        return found

    with held(monkeypatch) as call:
        monkeypatch.setattr(accept, "_taken", taken)
        mine = call(view, rival)
        other = call(view, Publication(b"y", idempotency_key="other"))

    assert mine.outcome().duplicate
    assert not other.outcome().duplicate
    assert Message.objects.filter(channel=channel).count() == 2


@pytest.mark.parametrize(
    ("deadlocks", "tried"),
    [(transactions.ATTEMPTS - 1, [1, 4]), (transactions.ATTEMPTS, [1, 4, 1, 1, 1, 1])],
)
def test_a_deadlock_is_retried_for_the_group_then_for_each_request(
    deadlocks: int, tried: list[int], monkeypatch: pytest.MonkeyPatch, groups: list[int]
) -> None:
    view = view_of(make_channel())
    errors.of_mysql(monkeypatch)
    failures = [OperationalError(1213, "Deadlock found")] * deadlocks
    real = transactions.write

    def write(statements: Any) -> None:
        if failures:
            raise failures.pop()
        real(statements)

    with held(monkeypatch) as call:
        calls = [call(view, Publication(b"%d" % n)) for n in range(4)]
        monkeypatch.setattr(transactions, "write", write)

    assert [body_of(one.outcome()) for one in calls] == [b"0", b"1", b"2", b"3"]
    assert groups == tried


@pytest.mark.mariadb
def test_large_bodies_do_not_wait_for_a_group(
    monkeypatch: pytest.MonkeyPatch, groups: list[int]
) -> None:
    view = view_of(make_channel())
    many = [Publication(b"%d" % n) for n in range(accept.SHARED_MESSAGES + 1)]
    large = [Publication(b"x" * (accept.SHARED_BYTES + 1))]
    real = transactions.write
    with held(monkeypatch):
        monkeypatch.setattr(transactions, "write", real)
        assert len(accept.accept(view, None, many)) == len(many)
        assert body_of(accept.accept(view, None, large)[0]) == large[0].body
    assert groups == [1]


def test_concurrent_threads_get_their_own_results() -> None:
    views = [view_of(make_channel()) for _ in range(3)]
    accept.accept(views[0], None, [Publication(b"taken", idempotency_key="taken")])
    wrong: list[object] = []

    def produce(me: int) -> None:
        for n in range(10):
            text = b"%d %d" % (me, n)
            key = "taken" if n % 5 == 4 else f"{me} {n}" if n % 2 else ""
            (result,) = accept.accept(
                views[0] if key == "taken" else views[n % 3],
                None,
                [Publication(text, idempotency_key=key)],
            )
            if result.conflict != (key == "taken") or result.duplicate:
                wrong.append((text, result))
            if not result.conflict and body_of(result) != text:
                wrong.append((text, result))

    for one in [Call(partial(produce, me)) for me in range(6)]:
        assert one.outcome() is None
    assert not wrong
    assert Message.objects.count() == MessageBody.objects.count() == 6 * 8 + 1


def test_a_failed_write_leaves_no_transaction_open() -> None:
    good: raw.Statement = ("INSERT INTO channels_app_configversion VALUES (7, 0)", [])
    bad: raw.Statement = ("INSERT INTO nowhere VALUES (1)", [])
    for statements in ([bad, good], [good, bad]):
        with pytest.raises(Exception, match="nowhere"):
            transactions.write(statements)
        assert raw.read("SELECT id FROM channels_app_configversion WHERE id = 7") == []
    transactions.write([good])
    connection.close()
    assert raw.read("SELECT id FROM channels_app_configversion WHERE id = 7") == [(7,)]


@pytest.mark.trap("acknowledged but not stored")
@pytest.mark.mariadb
def test_nothing_is_acknowledged_before_the_commit_is_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view = view_of(make_channel())
    cursor_class: Any = type(connection.cursor().cursor)
    real = cursor_class.nextset

    def nextset(cursor: Any) -> Any:
        # A killed query may cancel the rest of its packet, including the COMMIT.
        return None if cursor.rowcount == 1 else real(cursor)

    monkeypatch.setattr(cursor_class, "nextset", nextset)
    with pytest.raises(OperationalError):
        accept.accept(view, None, [Publication(b"x")])
