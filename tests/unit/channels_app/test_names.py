"""Names: safe ones are accepted, all others are refused with a sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core.names import event_type, slug
from tests.support.properties import quick


@pytest.mark.parametrize("value", ["a", "0", "orders", "team-a.orders_v2", "1.2.3", "a" * 100])
def test_good_slugs(value: str) -> None:
    assert slug(value) is None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a" * 101,
        "Orders",
        "-orders",
        ".orders",
        "_orders",
        "orders/eu",
        "orders eu",
        "orders\n",
        "\norders",
        "b\u00fccher",
        "\u0661",
        "orders%",
        "..",
    ],
)
def test_bad_slugs(value: str) -> None:
    assert "lower-case letters" in (slug(value) or "")


@pytest.mark.parametrize(
    "value", ["a", "order", "order.created", "Order.Line_Item.v2", "1.2", "_", "a" * 128]
)
def test_good_event_types(value: str) -> None:
    assert event_type(value) is None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a" * 129,
        ".",
        "order.",
        ".order",
        "order..created",
        "order-created",
        "order.*",
        "*",
        "order created",
        "order.created\n",
        "\u0661",
        "commande.cr\u00e9\u00e9e",
    ],
)
def test_bad_event_types(value: str) -> None:
    assert "joined by dots" in (event_type(value) or "")


@quick
@given(st.text() | st.text("aA0._-*\n", max_size=6))
def test_good_names_need_no_escaping(value: str) -> None:
    if slug(value) is None or event_type(value) is None:
        assert value.isascii()
        assert value.replace(".", "").replace("-", "").replace("_", "a").isalnum()
