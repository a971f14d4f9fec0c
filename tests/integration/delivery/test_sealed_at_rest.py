"""With encrypted bodies, responses and forwarded headers are stored encrypted too."""

from collections.abc import Iterator

import pytest
from django.db import connection

from channels_app.database import clock
from channels_app.models import Message
from channels_app.registry import data_encryption
from delivery.admin import attempt
from delivery.core.outcome import Outcome
from delivery.models import Attempt, Delivery
from delivery.serializers.deliveries import AttemptSerializer
from tests.support import pumping
from tests.support.pulling import Worker, bring, waiting
from tests.support.pumping import all_finished, make_channel, make_consumer, publish, pump_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = b"account 4711-0815"
ECHO = (
    Reply(500, body=b"cannot book: " + SECRET, headers=(("X-Echo", SECRET.decode()),)),
    Reply(200, body=b"\x01booked: " + SECRET),
)


def stored_values() -> Iterator[tuple[str, bytes]]:
    """Yield every value of every table, as bytes."""
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")  # noqa: S608 (ours)
            for row in cursor.fetchall():
                for value in row:
                    yield table, value if isinstance(value, bytes) else str(value).encode()


def tables_with(text: bytes) -> set[str]:
    return {table for table, value in stored_values() if text in value}


@pytest.mark.trap("a response that repeats the body")
def test_no_table_shows_a_sealed_body_that_the_consumer_repeated(receiver: Receiver) -> None:
    channel = make_channel()
    make_consumer(channel, receiver.url("/echo"))
    receiver.script("/echo", ECHO)
    publish(channel, SECRET, headers={"X-Customer": SECRET.decode()})
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)

    assert tables_with(SECRET) == set()

    # Authorized readers still see the plain values.
    first, last = receiver.requests("/echo")
    assert first.header("X-Customer") == last.header("X-Customer") == SECRET.decode()
    failed, booked = Attempt.objects.order_by("number")
    assert f"X-Echo: {SECRET.decode()}" in failed.answer.headers
    assert failed.answer.body == b"cannot book: " + SECRET
    assert booked.answer.body == b"\x01booked: " + SECRET
    may_open = AttemptSerializer.context_for(for_operator=False, may_open=True)
    assert AttemptSerializer(failed, context=may_open).data["response"] == {
        "headers": failed.answer.headers,
        "body": f"cannot book: {SECRET.decode()}",
    }
    message, delivery = Message.objects.get(), Delivery.objects.get()
    assert data_encryption.headers_of(message) == {"X-Customer": SECRET.decode()}
    sent = dict(attempt.headers(delivery, message, delivery.consumer, clock.now()))
    assert sent["X-Customer"] == SECRET.decode()


@pytest.mark.trap("a response that repeats the body")
def test_no_table_shows_a_sealed_body_that_a_worker_repeated() -> None:
    consumer = waiting()
    bring(consumer, SECRET)
    worker = Worker(consumer)
    (one,) = worker.receive()
    worker.say("nack", one["lease"], error=f"cannot book: {SECRET.decode()}")

    assert tables_with(SECRET) == set()
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.answer.error) == (
        Outcome.REJECTED.value,
        f"cannot book: {SECRET.decode()}",
    )


def test_responses_and_headers_are_plain_where_bodies_are(receiver: Receiver) -> None:
    channel = make_channel(encrypt_bodies=False)
    make_consumer(channel, receiver.url("/echo"))
    receiver.script("/echo", ECHO)
    publish(channel, SECRET, headers={"X-Customer": SECRET.decode()})
    with pumping.pumping() as pump:
        pump_until(pump, all_finished)

    assert Message.objects.get().headers == {"X-Customer": SECRET.decode()}
    failed, booked = Attempt.objects.order_by("number")
    assert bytes(failed.answer_excerpt) == failed.answer.body == b"cannot book: " + SECRET
    # It begins like an envelope but is not one.
    assert booked.answer.body == b"\x01booked: " + SECRET


def test_a_response_moved_to_another_attempt_does_not_decrypt() -> None:
    answer = data_encryption.StoredResponse("", "HTTP/1.1 200 OK", SECRET)
    row = Attempt(
        delivery_id=1,
        number=2,
        answer_excerpt=data_encryption.encrypt_response(1, 1, answer),
        error="reset.",
    )
    assert row.answer.body == b""
    assert row.answer.error.startswith("reset. The answer cannot be read: ")
    row.number = 1
    assert row.answer == answer._replace(error="reset.")
