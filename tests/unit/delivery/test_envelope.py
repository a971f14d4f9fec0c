"""The broker's headers arrive unchanged, whatever headers users add."""

from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.http import canonical
from delivery.core.signing import Envelope, build
from tests.support.properties import quick

PLAIN = Envelope(
    message_id="msg_01h000000000a",
    timestamp=1_700_000_000,
    signature="v1,abc= v1a,def==",
    content_type="application/json",
    channel="orders",
    consumer="billing",
    event_type="order.created",
    priority=4,
    attempt=2,
    max_attempts=10,
    accepted_at=datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC),
    user_agent="Hookstation/0.1.0",
)
BROKERS = [
    ("Content-Type", "application/json"),
    ("User-Agent", "Hookstation/0.1.0"),
    ("webhook-id", "msg_01h000000000a"),
    ("webhook-timestamp", "1700000000"),
    ("webhook-signature", "v1,abc= v1a,def=="),
    ("Hookstation-Channel", "orders"),
    ("Hookstation-Consumer", "billing"),
    ("Hookstation-Event-Type", "order.created"),
    ("Hookstation-Priority", "4"),
    ("Hookstation-Attempt", "2"),
    ("Hookstation-Max-Attempts", "10"),
    ("Hookstation-Accepted-At", "2026-03-01T12:00:00.123Z"),
]


def test_a_plain_message() -> None:
    assert build(PLAIN) == BROKERS


def test_optional_headers_are_sent_only_if_they_apply() -> None:
    full = PLAIN._replace(ordering_key="customer-7", replay=True, test=True)
    assert build(full)[len(BROKERS) :] == [
        ("Hookstation-Ordering-Key", "customer-7"),
        ("Hookstation-Replay", "true"),
        ("Hookstation-Test", "true"),
    ]
    assert "Hookstation-Event-Type" not in dict(build(PLAIN._replace(event_type="")))


def test_priority_zero_is_a_priority() -> None:
    assert dict(build(PLAIN._replace(priority=0)))["Hookstation-Priority"] == "0"


def test_a_missing_content_type_stays_missing() -> None:
    headers = build(PLAIN._replace(content_type="", forwarded={"Content-Type": "text/html"}))
    assert headers == BROKERS[1:]


def test_custom_headers_come_first_and_the_consumers_win() -> None:
    headers = build(
        PLAIN._replace(
            forwarded={"X-Tenant": "producer's", "X-Trace": "1"},
            static={"x-tenant": "consumer's", "Authorization": "Basic abc"},
        )
    )
    people = [("X-Trace", "1"), ("x-tenant", "consumer's"), ("Authorization", "Basic abc")]
    assert headers == people + BROKERS


SPELLINGS = [
    spelling.replace("-", hyphen)
    for name in [*dict(BROKERS), "Hookstation-Replay", "Hookstation-Test", "Host", "X-Tenant"]
    for spelling in (name, name.lower(), name.upper(), name.swapcase())
    for hyphen in "-_"
]
FORGED = st.dictionaries(st.sampled_from(SPELLINGS), st.text(max_size=5), max_size=8)


@pytest.mark.trap("a producer forges the broker's headers")
@quick
@given(FORGED, FORGED)
def test_broker_headers_always_win(forwarded: dict[str, str], static: dict[str, str]) -> None:
    headers = build(PLAIN._replace(forwarded=forwarded, static=static))
    assert headers[-len(BROKERS) :] == BROKERS
    assert {canonical(name) for name, _ in headers[: -len(BROKERS)]} <= {"x-tenant"}
    assert len(headers) <= len(BROKERS) + 1


@quick
@given(st.text(), st.text())
def test_broker_values_fit_on_one_header_line(ordering_key: str, content_type: str) -> None:
    headers = build(PLAIN._replace(ordering_key=ordering_key, content_type=content_type))
    for name, value in headers:
        assert f"{name}: {value}".isascii()
        assert f"{name}: {value}".isprintable()
    if ordering_key and "%" not in ordering_key:
        assert unquote(dict(headers)["Hookstation-Ordering-Key"]) == ordering_key


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-8)), timezone(timedelta(hours=5))])
def test_instants_are_in_utc(zone: timezone) -> None:
    local = PLAIN.accepted_at.astimezone(zone)
    assert build(PLAIN._replace(accepted_at=local)) == BROKERS
