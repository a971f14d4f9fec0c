"""The generated month itself: whoever tests with it relies on this."""

import pytest

from delivery.steps import recount
from tests.pipeline import month

pytestmark = pytest.mark.django_db


def test_its_books_are_true_and_it_holds_every_kind_of_end() -> None:
    made = month.make(messages=800)

    assert recount.gap() == 0
    assert {row.state for row in made.deliveries} == {"queued", "delivered", "dead"}
    outcomes = {row.outcome for row in made.deliveries if row.state == "dead"}
    assert outcomes == {"unavailable", "server_error"}
    assert {row.outcome for row in made.attempts} > {"timeout", "client_error"}
