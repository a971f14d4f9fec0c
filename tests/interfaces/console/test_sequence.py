"""The console's pages of sequences: the expected number, waiting requests, and their links."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from channels_app.database import clock
from channels_app.models import PendingSequenceNumber, Sequence
from tests.support import console
from tests.support.factories import ChannelFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    return console.operator()


def make(**values: object) -> Sequence:
    known = {"channel": ChannelFactory.create(slug="rooms"), "touched_at": clock.now()}
    return Sequence.objects.create(**{"id": 7, "ordering_key": "room-7", **known, **values})


def wait(number: int, seconds: int = 60) -> None:
    until = clock.now() + timedelta(seconds=seconds)
    PendingSequenceNumber.objects.create(id=number, sequence_id=7, number=number, until=until)


def test_a_sequence_lists_waiting_numbers_up_to_a_limit(operator: Client) -> None:
    row = make(expected=100_205)
    for number in range(1_001, 1_021):
        wait(number)
    wait(2_000, seconds=-1)

    text = console.look(operator, console.page_url(row))
    assert "100,205" in text
    assert "1,001, 1,002" in text
    assert "1,020" in text
    assert "and more" not in text
    assert "2,000" not in text

    wait(1_021)
    text = console.look(operator, console.page_url(row))
    assert "1,020 and more" in text
    assert "1,021" not in text


def test_waiting_numbers_link_to_their_key(operator: Client) -> None:
    row = make()
    wait(3)
    PendingSequenceNumber.objects.create(id=9, sequence_id=8, number=9, until=clock.now())

    waiting = console.look(operator, console.list_url(PendingSequenceNumber))

    assert f'href="{console.page_url(row)}"' in waiting
    assert "rooms / room-7" in waiting
    lists = [console.list_url(model) for model in (Sequence, PendingSequenceNumber)]
    for page in (waiting, console.look(operator, lists[0])):
        assert all(f'href="{one}"' in page for one in lists)


def test_waiting_numbers_are_read_in_one_query(operator: Client) -> None:
    make(id=7)
    costs = []
    for numbers in (range(2, 4), range(4, 24)):
        for number in numbers:
            wait(number)
        with CaptureQueriesContext(connection) as queries:
            console.look(operator, console.list_url(PendingSequenceNumber))
        costs.append(len(queries))
    assert costs[0] == costs[1]
