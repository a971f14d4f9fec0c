"""The console's pages of sequences: the expected number, waiting requests, and their links."""

from datetime import timedelta

import pytest
from django.test import Client

from channels_app.database import clock
from channels_app.models import PendingSequenceNumber, Sequence
from tests.support import console
from tests.support.counts import query_count
from tests.support.factories import ChannelFactory

pytestmark = pytest.mark.django_db


def make(**values: object) -> Sequence:
    known: dict[str, object] = {"touched_at": clock.now()}
    if "channel" not in values:
        known["channel"] = ChannelFactory.create(slug="rooms")
    return Sequence.objects.create(**{"id": 7, "ordering_key": "room-7", **known, **values})


def wait(number: int, seconds: int = 60) -> None:
    until = clock.now() + timedelta(seconds=seconds)
    PendingSequenceNumber.objects.create(id=number, sequence_id=7, number=number, until=until)


def test_a_sequence_lists_waiting_numbers_in_pages(operator: Client) -> None:
    row = make(expected=100_205)
    for number in range(1_001, 1_021):
        wait(number)
    wait(2_000, seconds=-1)

    text = console.look(operator, console.page_url(row))
    assert "100,205" in text
    assert "1,001" in text
    assert "1,020" in text
    assert "?numbers=2" not in text
    assert "2,000" not in text

    wait(1_021)
    text = console.look(operator, console.page_url(row))
    assert 'href="?numbers=2#numbers"' in text
    assert "1,021" not in text
    assert "1,021" in console.look(operator, f"{console.page_url(row)}?numbers=2")


def test_sequences_with_waiting_numbers_can_be_listed(operator: Client) -> None:
    row = make()
    late = make(id=8, channel=row.channel)
    wait(3)
    PendingSequenceNumber.objects.create(id=9, sequence_id=8, number=9, until=clock.now())

    listed = [
        list(operator.get(console.list_url(Sequence, query)).context["cl"].result_list)
        for query in ("", "?early=yes")
    ]

    assert listed == [[late, row], [row]]


def test_waiting_numbers_are_read_in_one_query(operator: Client) -> None:
    row = make()
    query_count(operator, console.page_url(row))  # fills the caches of the process
    costs = []
    for numbers in (range(2, 4), range(4, 20)):
        for number in numbers:
            wait(number)
        costs.append(query_count(operator, console.page_url(row)))
    assert costs[0] == costs[1]
