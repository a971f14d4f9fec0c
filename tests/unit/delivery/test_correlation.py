"""Reading correlation ids and statuses from any response or callback of a provider (S3-39)."""

import hmac
import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import provider_ids as settings
from channels_app.serializers.acks import Ack
from delivery.core import acks
from delivery.core.acks import ProviderStatus, correlation_id, named, words

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["messages", "entry", "changes", "value", "statuses", "id", "status"]),
            inner,
        )
    ),
    max_leaves=30,
)


def ack(**values: Any) -> dict[str, Any]:
    given_ = {"mode": "callback", "correlation": values}
    stored: dict[str, Any] = Ack().take(given_)
    return stored


WHATSAPP = ack(preset="whatsapp-cloud")


def test_a_preset_fills_missing_settings() -> None:
    setting = ack(preset="whatsapp-cloud", accept=["read"])["correlation"]
    assert setting["accept"] == ["read"]
    assert setting["response_id"] == "messages[0].id"
    assert Ack().take(WHATSAPP) == WHATSAPP, "what was read may be sent again"


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"preset": "nobody"},
        {"response_id": "id", "callback_id": "id", "callback_status": "s"},
        {"preset": "whatsapp-cloud", "accept": []},
        {"preset": "whatsapp-cloud", "fail": ["sent"]},
        {"preset": "whatsapp-cloud", "response_id": "length(a)"},
        {"preset": "whatsapp-cloud", "signature": {"preset": "meta-x-hub-256", "secret": ""}},
        {"preset": "whatsapp-cloud", "signature": {"preset": "none", "secret": "x"}},
        {"preset": "whatsapp-cloud", "colour": "red"},
    ],
)
def test_an_unworkable_setting_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="correlation"):
        ack(**values)


def test_without_correlation_no_id_is_stored() -> None:
    assert "correlation" not in Ack().take({"mode": "callback"})
    assert "correlation" not in Ack().take({"mode": "callback", "correlation": None})
    assert named(None, b'{"messages": [{"id": "x"}]}') == ""
    assert named({"mode": "timer"}, b'{"messages": [{"id": "x"}]}') == ""


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (b'{"messages": [{"id": "wamid.1"}]}', "wamid.1"),
        (b'{"messages": [{"id": 17}]}', "17"),
        (b'{"messages": [{"id": true}]}', ""),
        (b'{"messages": [{"id": ""}]}', ""),
        (b'{"messages": [{"id": {"a": "b"}}]}', ""),
        (json.dumps({"messages": [{"id": "x" * 501}]}).encode(), ""),
        (b'{"messages": [{"id": "wamid.1', ""),
        (b"[" * 100_000, ""),
        (b'{"messages": [{"id": ' + b"1" * 5000 + b"}]}", ""),
        (b"\xff\xfe", ""),
        (b"ok", ""),
        (b"", ""),
    ],
)
def test_the_id_is_found_in_the_response(answer: bytes, name: str) -> None:
    assert named(WHATSAPP, answer) == name


def test_each_status_is_a_separate_callback() -> None:
    setting = ack(
        response_id="id",
        callback="[*]",
        callback_id="meta.id",
        callback_status="event",
        accept=["delivered"],
        fail=["bounce"],
    )["correlation"]
    body = [
        {"meta": {"id": "a"}, "event": "delivered"},
        {"meta": {"id": "b"}, "event": "processed"},
        {"event": "delivered"},
        "nonsense",
        {"meta": {"id": "c"}, "event": "bounce"},
        {"meta": {"id": "d"}, "event": ["delivered"]},
    ]
    assert list(words(setting, body)) == [
        ProviderStatus("a", True),
        ProviderStatus("c", False),
        ProviderStatus("d", True),
    ]


def test_the_whole_body_can_be_one_callback() -> None:
    setting = ack(
        response_id="sid", callback_id="sid", callback_status="status", accept=["delivered"]
    )["correlation"]
    assert list(words(setting, {"sid": 7, "status": "delivered"})) == [ProviderStatus("7", True)]


@given(body=ANY_JSON)
def test_any_body_parses_to_callbacks_or_none(body: Any) -> None:
    found = list(words(WHATSAPP["correlation"], body))
    assert all(word.provider_id for word in found)
    for word in found:
        assert 0 <= correlation_id(1, word.provider_id) < 2**63
    assert isinstance(named(WHATSAPP, json.dumps(body).encode()), str)


def test_the_number_of_statuses_per_callback_is_limited() -> None:
    statuses = [{"id": f"{n}", "status": "sent"} for n in range(acks.MAX_WORDS + 1)]
    body = {"entry": [{"changes": [{"value": {"statuses": statuses}}]}]}
    with pytest.raises(ValueError, match="1000"):
        list(words(WHATSAPP["correlation"], body))
    statuses.pop()
    assert len(list(words(WHATSAPP["correlation"], body))) == acks.MAX_WORDS


def test_correlation_ids_of_consumers_do_not_collide() -> None:
    numbers = {correlation_id(n, i) for n in (1, 2) for i in ("a", "b", ":a", "\ud800")}
    assert len(numbers) == 8


@pytest.mark.seed("S3-39")
def test_a_signature_is_that_of_the_exact_bytes() -> None:
    body = '{"text": "\\u00e9\u00e9"}'.encode()
    good = "sha256=" + hmac.new(b"app secret", body, sha256).hexdigest()
    assert settings.is_signed(good, body, "app secret")
    for header in ("", good[:-1], good[7:], good + "0", "sha1=" + good[7:], "\u00e9", "\ud800"):
        assert not settings.is_signed(header, body, "app secret"), header
    assert not settings.is_signed(good, body + b" ", "app secret")
    assert not settings.is_signed(good, body, "another")
