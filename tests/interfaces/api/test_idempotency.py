"""Idempotency keys: which message a key refers to and for how long, after any sequence of calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import NamedTuple

import pytest
from django.db import connection
from hypothesis import example, given
from hypothesis import strategies as st

from channels_app.core import ids
from channels_app.database import clock
from channels_app.models import Message, MessageBody
from channels_app.registry import data_encryption
from delivery.maintenance import retention
from tests.support.api import Api
from tests.support.doors import DOORS, Door
from tests.support.factories import ApiKeyFactory, ChannelFactory
from tests.support.properties import quick

WINDOWS_S = 60, 90_000
START = datetime(2035, 1, 1, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
NEAR, FAR = (timedelta(seconds=window) for window in WINDOWS_S)
PAUSES = [timedelta(0), MOMENT, NEAR - MOMENT, NEAR, NEAR + MOMENT, FAR - NEAR, FAR]
"""Steps exactly at the end of both windows, and a microsecond to either side."""
KEYS = ["k", "K", "k%", "None:k"]
_numbers = count(1)


class Step(NamedTuple):
    """One publish request, after a pause."""

    pause: timedelta
    is_swept: bool
    """Whether the maintenance process deletes expired keys before."""
    channel: int
    caller: int
    door: str
    items: list[tuple[str, str]]
    """Idempotency keys and bodies."""


STEPS = st.lists(
    st.builds(
        Step,
        pause=st.sampled_from(PAUSES),
        is_swept=st.booleans(),
        channel=st.integers(0, 1),
        caller=st.integers(0, 2),
        door=st.sampled_from(DOORS),
        items=st.lists(
            st.tuples(st.sampled_from(KEYS), st.sampled_from(["one", "two"])),
            min_size=1,
            max_size=4,
        ),
    ),
    min_size=4,
    max_size=12,
)


def at_the_end(pause: timedelta, door: str) -> Step:
    """Return a repeat of the same message, which random steps contain too rarely."""
    return Step(pause if door == "short" else timedelta(0), False, 0, 0, door, [("k", "one")])


class Kept(NamedTuple):
    """The message that a key refers to."""

    id: str
    body: str
    until: datetime


class World:
    """Two channels, two producers, an operator, and the messages that their keys refer to."""

    def __init__(self) -> None:
        number = next(_numbers)
        self.channels = [
            ChannelFactory.create(slug=f"window-{number}-{place}", idempotency_window_s=window)
            for place, window in enumerate(WINDOWS_S)
        ]
        self.callers = [*ApiKeyFactory.create_batch(2), ApiKeyFactory.create(admin=True)]
        self.now = START
        self.kept: dict[tuple[int, int, str], Kept] = {}
        self.stored: dict[str, str] = {}
        """Expected bodies by message id."""

    def take(self, step: Step) -> None:
        """Publish, and compare each response with the expected one."""
        self.now += step.pause
        if step.is_swept:
            assert all(retention.delete_idempotency_keys(self.now))
        door = Door(step.door, self.callers[step.caller])
        items = [{"body": body, "idempotency_key": key} for key, body in step.items]
        answers = door.publish_all(self.channels[step.channel].slug, *items)
        for (key, body), answer in zip(step.items, answers, strict=True):
            place = step.channel, step.caller, key
            kept = self.kept.get(place)
            if kept is None or kept.until <= self.now:
                assert (answer["status"], answer["duplicate"]) == (202, False)
                assert answer["id"] not in self.stored
                window = timedelta(seconds=WINDOWS_S[step.channel])
                self.kept[place] = Kept(answer["id"], body, self.now + window)
                self.stored[answer["id"]] = body
            elif kept.body == body:
                assert (answer["status"], answer["duplicate"]) == (200, True)
                assert answer["id"] == kept.id
            else:
                assert (answer["status"], answer["code"]) == (409, "idempotency_conflict")
                assert "id" not in answer

    def check(self) -> None:
        """Check that the stored messages are those acknowledged as new, with their first bodies."""
        bodies = MessageBody.objects.filter(
            message_id__in=Message.objects.filter(channel__in=self.channels).values("id")
        )
        assert self.stored == {
            ids.to_public(ids.MESSAGE, key): data_encryption.decrypt_body(key, bytes(data)).decode()
            for key, data in bodies.values_list("message_id", "data")
        }


@pytest.mark.slow("a state machine over the API")
@pytest.mark.seed("S4-15", "S4-R1")
@pytest.mark.django_db(transaction=True)
@quick
@given(STEPS)
@example([at_the_end(pause, door) for pause in (MOMENT, NEAR - MOMENT, MOMENT) for door in DOORS])
@example([at_the_end(pause, door) for pause in (NEAR, NEAR) for door in DOORS])
def test_an_idempotency_key_stores_one_message_per_window(steps: list[Step]) -> None:
    world = World()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda: world.now)
        for step in steps:
            world.take(step)
    world.check()


@contextmanager
def database_ahead(seconds: int) -> Iterator[None]:
    """Set the server's clock ahead of this machine's for this connection."""
    with connection.cursor() as cursor:
        cursor.execute("SET timestamp = UNIX_TIMESTAMP(NOW(6)) + %s", [seconds])
        clock.sync()
        try:
            yield
        finally:
            cursor.execute("SET timestamp = DEFAULT")
            clock.sync()


@pytest.mark.mariadb
@pytest.mark.django_db(transaction=True)
def test_the_window_closes_by_the_databases_clock() -> None:
    """Hosts with different clocks share one window."""
    ChannelFactory.create(slug="window", idempotency_window_s=60)
    producer = Api(ApiKeyFactory.create())

    def publish() -> tuple[int, str]:
        answer = producer.post("channels/window/messages", b"x", Idempotency_Key="k")
        return answer.status, answer.json["id"]

    status, first = publish()
    assert status == 202
    with database_ahead(seconds=30):
        assert publish() == (200, first)
    with database_ahead(seconds=90):
        status, second = publish()
        assert (status, second != first) == (202, True)
    assert publish() == (200, second)
