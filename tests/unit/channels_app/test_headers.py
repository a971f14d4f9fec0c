"""Headers that users add cannot imitate the broker's own or break the request's framing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.http import check_forwarded, check_static, forwardable, settable
from tests.support.properties import quick

FRAMING = [
    *("Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade"),
    *("Proxy-Authorization", "Proxy-Connection", "Host", "Content-Length", "Content-Type"),
    *("User-Agent", "Accept-Encoding", "Expect", "HTTP2-Settings"),
]
OURS = ["webhook-id", "Webhook-Signature", "webhook-anything", "Hookstation-Channel"]
CREDENTIALS = ["Authorization", "Cookie"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("tracestate", "a=b,c=d"),
        ("baggage", "user=1"),
        ("X-Tenant", "acme"),
        ("x_tenant", "acme"),
        ("Content-Encoding", "gzip"),
        ("Content-Language", "de"),
        ("X-Latin", "b\u00fccher"),
        ("X-Empty", ""),
        ("X-Long", "a" * 4096),
        ("X" * 100, "1"),
        ("X-Webhook-Id", "mine"),
        ("Webhook", "mine"),
    ],
)
def test_forwarded_headers_are_accepted(name: str, value: str) -> None:
    assert forwardable(name, value) is None
    assert settable(name, value) is None


@pytest.mark.parametrize("name", FRAMING + OURS)
def test_broker_header_names_are_refused_in_any_case(name: str) -> None:
    for spelling in (name, name.lower(), name.upper(), name.replace("-", "_")):
        assert "set by the broker" in (forwardable(spelling, "1") or "")
        assert "set by the broker" in (settable(spelling, "1") or "")


@pytest.mark.parametrize("name", CREDENTIALS)
def test_producers_cannot_set_credential_headers(name: str) -> None:
    assert "credentials" in (forwardable(name, "secret") or "")
    assert "credentials" in (forwardable(name.upper(), "secret") or "")
    assert settable(name, "secret") is None


@pytest.mark.parametrize(
    "name", ["", " ", "X Tenant", "X:Tenant", "X\r\nHost", "X-T\u00e9", "X\x00", "a" * 101, "(x)"]
)
def test_invalid_header_names_are_refused(name: str) -> None:
    assert "is not a header name" in (forwardable(name, "1") or "")


@pytest.mark.parametrize(
    "value",
    ["a\r\nHost: inner", "a\n", "a\x00", "a\tb", "a\x7f", "a\x85", "\u20ac", "a" * 4097],
)
def test_invalid_header_text_is_refused(value: str) -> None:
    assert (forwardable("X-Tenant", value) or "").startswith("The header X-Tenant")


@pytest.mark.trap("header injection")
@quick
@given(st.text(), st.text())
def test_an_accepted_header_is_one_line_on_the_wire(name: str, value: str) -> None:
    if settable(name, value) is None:
        assert len(f"{name}: {value}".encode("latin-1").splitlines()) == 1
    if forwardable(name, value) is None:
        assert settable(name, value) is None


def test_the_number_of_headers_is_limited() -> None:
    headers = {f"X-{n}": "1" for n in range(32)}
    assert check_forwarded(headers) is None
    assert check_static(headers) is None
    headers["X-One-More"] = "1"
    assert "At most 32" in (check_forwarded(headers) or "")
    assert "at most 32" in (check_static(headers) or "")


def test_the_first_invalid_header_is_reported() -> None:
    headers = {"X-Tenant": "acme", "Host": "inner", "X Y": ""}
    assert check_forwarded(headers) == forwardable("Host", "inner")
    assert check_static(headers) == settable("Host", "inner")
    assert check_forwarded({"Cookie": "a=b"}) == forwardable("Cookie", "a=b")
    assert check_static({"Cookie": "a=b"}) is None
