"""Lease tokens: a written token can be read, any other text is refused."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from delivery.core import leases
from delivery.core.leases import MAX_TOKEN_LENGTH, MAX_WORKER_LENGTH, Lease

KEY, OTHER = b"a key", b"another key"
INSTANTS = st.datetimes(datetime(2025, 1, 1), datetime(2094, 1, 1), timezones=st.just(UTC))
LEASES = st.builds(
    Lease,
    delivery_id=st.integers(0, (1 << 63) - 1),
    consumer_id=st.integers(0, (1 << 63) - 1),
    attempt=st.integers(0, (1 << 32) - 1),
    failure_count=st.integers(0, (1 << 32) - 1),
    interruption_count=st.integers(0, 65535),
    accepted_at=INSTANTS,
    taken_at=INSTANTS,
    worker=st.text(
        st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=MAX_WORKER_LENGTH
    ),
    ordering_key=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=255),
)


@given(LEASES)
def test_a_token_identifies_its_lease(lease: Lease) -> None:
    token = leases.to_token(lease, KEY)
    assert len(token) <= MAX_TOKEN_LENGTH
    assert leases.from_token(token, KEY) == lease
    assert leases.from_token(token, OTHER) is None


@given(LEASES, st.integers(0, 10_000), st.sampled_from("abcXYZ019-_"))
def test_a_changed_token_is_refused(lease: Lease, place: int, other: str) -> None:
    token = leases.to_token(lease, KEY)
    place %= len(token) - 1  # some bits of the last character are unused
    changed = token[:place] + other + token[place + 1 :]
    assert changed == token or leases.from_token(changed, KEY) is None


@given(st.text(max_size=600) | st.text("abcXYZ019-_=", max_size=300).map("lse_{}".format))
def test_an_invalid_token_is_refused(text: str) -> None:
    assert leases.from_token(text, KEY) is None


@given(st.integers(1, 1 << 62), st.text(max_size=64))
def test_an_owner_is_never_a_pump(consumer_id: int, worker: str) -> None:
    found = leases.owner_of(consumer_id, worker.encode(errors="replace").decode())
    assert -(1 << 63) <= found < 0
