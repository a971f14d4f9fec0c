"""Onsets: the facts about the beginning of a failure, as users read them."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.triage import AuditedChange, History, OnsetFacts, duration, explain_onset, weight
from tests.support.properties import quick

BEGAN = datetime(2026, 11, 19, 4, tzinfo=UTC)


def test_the_nearest_change_before_it_is_told() -> None:
    changes = [
        AuditedChange(
            BEGAN - timedelta(hours=20), "user:otto", "channel.update", "orders", ("paused",)
        ),
        AuditedChange(
            BEGAN - timedelta(minutes=25), "user:mia", "consumer.update", "orders/a", ("url",)
        ),
        AuditedChange(BEGAN - timedelta(days=2), "user:otto", "consumer.pause", "orders/a"),
        AuditedChange(BEGAN + timedelta(minutes=1), "user:otto", "consumer.pause", "orders/a"),
    ]

    assert explain_onset(OnsetFacts("orders/a", BEGAN, changes)) == (
        "That was 25 minutes after user:mia changed url of orders/a; 1 change more that day. "
        "No earlier attempt at orders/a is known."
    )


def test_a_change_that_is_not_known_by_name_is_told_as_it_is() -> None:
    for action, words in (("consumer.pause", "paused"), ("consumer.mend_it", "did mend it with")):
        changes = [AuditedChange(BEGAN, "broker", action, "orders/a")]
        text = explain_onset(OnsetFacts("orders/a", BEGAN, changes))
        assert text.startswith(f"That was 0 seconds after broker {words} orders/a. ")


def test_other_consumers_of_the_host_that_began_with_it_are_named() -> None:
    names = [(f"orders/{name}", BEGAN + timedelta(minutes=3)) for name in "bcdef"]
    names.append(("orders/z", BEGAN - timedelta(days=3)))

    text = explain_onset(OnsetFacts("orders/a", BEGAN, neighbours=names))

    assert text.startswith(
        "At the same time orders/b, orders/c, orders/d and 2 more began to fail at this host."
    )


def test_what_was_before_is_told() -> None:
    before = History(1812, BEGAN - timedelta(days=12), "delivered", 200)
    assert explain_onset(OnsetFacts("orders/a", BEGAN, before=before)) == (
        "Before, orders/a took 1,812 in 12 days, without a dead letter; "
        "its last attempt ended in delivered (200)."
    )

    before = History(3, BEGAN - timedelta(hours=2), "server_error", 500, BEGAN - timedelta(hours=1))
    assert explain_onset(OnsetFacts("orders/a", BEGAN, before=before)) == (
        "Before, orders/a took 3 in 2 hours, with its last dead letter 1 hour before; "
        "its last attempt ended in server error (500)."
    )

    before = History(0, BEGAN - timedelta(seconds=90), "timeout")
    assert explain_onset(OnsetFacts("orders/a", BEGAN, before=before)) == (
        "orders/a took nothing in the 1 minute before that are known."
    )


@quick
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.timedeltas(), st.timedeltas())
def test_more_and_fresher_comes_first(
    one: int, other: int, age: timedelta, older: timedelta
) -> None:
    few, many = sorted((one, other))
    age, older = sorted((age, older))
    assert weight(few, older) <= weight(many, age)


def test_half_of_it_is_gone_in_a_week() -> None:
    assert weight(10, timedelta(days=7)) == 5
    assert weight(10, timedelta(days=-1)) == 10


def test_a_span_has_one_unit() -> None:
    lengths = (timedelta(seconds=1), timedelta(minutes=59), timedelta(hours=25), timedelta(days=9))
    assert [duration(length) for length in lengths] == ["1 second", "59 minutes", "1 day", "9 days"]
