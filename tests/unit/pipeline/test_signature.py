"""Error signatures ignore what varies between responses and keep what tells kinds apart."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core import triage
from tests.support.properties import quick

PIECES = st.lists(
    st.sampled_from(
        (
            *("order 17", "0190a7b2-5c1e-7cc3-98c4-dc0c0c07398f", "deadbeefcafebabe", "10.1.2.3"),
            *("fe80::1ff:fe23:4567:890a", "mia.b+1@shop.example", "2026-11-22T04:20:34.235Z"),
            *("Sun, 22 Nov 2026 04:20:34 GMT", "req_8Kx2Z9ab"),
            *('{"error": "card declined", "id": 17}', "<h1>503 Service Unavailable</h1>", "::"),
            *("@", "\x00\t", "٣²½"),
        )
    )
    | st.text(max_size=12),
    max_size=40,
)


@quick
@given(PIECES)
def test_a_shape_is_short_stable_and_has_no_digits(pieces: list[str]) -> None:
    shape = triage.shape("".join(pieces))

    assert triage.shape(shape) == shape
    assert len(shape) <= triage.MAX_SHAPE_LENGTH
    assert not re.search(r"\d", shape)
    assert shape == " ".join(shape.split())
    shape.encode()


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("upstream 10.0.0.3 is away, id 9f3a2b1c0d4e5f60", "upstream <address> is away, id #"),
        ("trace deadbeefcafebabe", "trace #"),
        ("no answer in 1500 ms", "no answer in # ms"),
        ("key 0190a7b2-5c1e-7cc3-98c4-dc0c0c07398f used", "key <uuid> used"),
        ("mia@shop.example is unknown", "<mail> is unknown"),
        ("at 2026-11-22T04:20:34.235Z", "at <time>"),
        ("Sun, 22 Nov 2026 04:20:34 GMT", "<time>"),
        ("since 04:20:34", "since <time>"),
        ("at 2001:db8::17 down", "at <address> down"),
        ("req_8Kx2Z9ab, 12,345.6 bytes", "req_#, # bytes"),
        ('{"error":  "card\ndeclined"}', '{"error": "card declined"}'),
        ("std::bad_alloc", "std::bad_alloc"),
        ("", ""),
    ],
)  # fmt: skip
def test_what_differs_each_time_is_left_out(text: str, shape: str) -> None:
    assert triage.shape(text) == shape


def test_the_words_of_an_error_count_more_than_the_answer() -> None:
    assert triage.response_text("no route", b"x") == "no route"
    assert triage.response_text("", "é".encode() * 300) == "é" * triage.MAX_SHAPE_LENGTH
    assert triage.response_text(None, b"\xffno") == "�no"
    assert triage.response_text(None, None) == ""


def test_every_part_tells_kinds_apart() -> None:
    whole = ("unavailable", 503, "a.example", "away")
    others = [
        ("timeout", 503, "a.example", "away"),
        ("unavailable", 502, "a.example", "away"),
        ("unavailable", None, "a.example", "away"),
        ("unavailable", 503, "b.example", "away"),
        ("unavailable", 503, "a.example", "gone"),
    ]

    signatures = {triage.signature(*parts) for parts in (whole, *others)}

    assert len(signatures) == 1 + len(others)
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in signatures)
    assert triage.signature(*whole) == triage.signature(*whole)
