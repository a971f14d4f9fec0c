"""Field readers: any JSON value is either cleaned or refused with a sentence."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from channels_app.core import fields, retry_overrides, settings
from channels_app.core.errors import Invalid
from channels_app.core.fields import Field

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("\udfff"), inner),
    max_leaves=20,
)
READERS = {
    "text": fields.text(10),
    "lines": fields.text(10, lines=True),
    "choice": fields.choice("a", "b"),
    "whole": fields.whole(-5, 5),
    "number": fields.number(0.5, 5),
    "boolean": fields.boolean,
    "slug": fields.slug,
    "nullable": fields.nullable(fields.whole(0, 1)),
    "listed": fields.listed(fields.choice("a", "b"), 3),
    "nested": fields.nested({"a": Field(fields.boolean, default=False)}),
    "json": fields.json_value(1000),
    "retry": settings.retry_policy,
    "overrides": retry_overrides.retry_overrides,
    "rate": settings.rate_limit,
    "headers": settings.static_headers,
    "only": settings.only(False, "Not yet."),
}


@pytest.mark.slow("draws JSON of any shape")
@pytest.mark.parametrize("name", READERS)
@given(value=ANYTHING)
def test_a_reader_returns_a_value_or_an_error_message(name: str, value: Any) -> None:
    reader = READERS[name]
    try:
        clean = reader(value)
    except ValueError:
        return
    # Any database can store an accepted value, reading it again does not change it, and the
    # schema allows it.
    json.dumps(clean, allow_nan=False, ensure_ascii=False).encode()
    assert reader(clean) == clean
    Draft202012Validator(fields.schema_of(reader)).validate(value)


@pytest.mark.parametrize(
    ("name", "value", "clean"),
    [
        ("text", "", ""),
        ("lines", "a\n\tb", "a\n\tb"),
        ("whole", -5, -5),
        ("whole", 5.0, 5),
        ("number", 5, 5.0),
        ("nullable", None, None),
        ("listed", ["b", "a"], ["b", "a"]),
        ("nested", {}, {"a": False}),
        ("json", {"a": [1, None]}, {"a": [1, None]}),
        ("rate", {"per_second": 2}, {"per_second": 2.0, "burst": 1}),
        ("headers", {"Authorization": "Bearer x"}, {"Authorization": "Bearer x"}),
    ],
)
def test_good_values(name: str, value: object, clean: object) -> None:
    assert READERS[name](value) == clean


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text", "a\nb"),
        ("text", "\x7f"),
        ("text", "\x85"),
        ("text", "x" * 11),
        ("lines", "a\x0bb"),
        ("whole", True),
        ("whole", 4.5),
        ("whole", 1e300),
        ("whole", float("inf")),
        ("whole", 6),
        ("number", False),
        ("number", float("nan")),
        ("number", float("inf")),
        ("number", 10**400),
        ("boolean", 1),
        ("listed", ["a", "a"]),
        ("listed", ("a", "b", "a", "b")),
        ("json", float("nan")),
        ("json", {1, 2}),
        ("json", "x" * 1000),
        ("slug", "Orders"),
        ("only", 0),
    ],
)
def test_bad_values(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"^[A-Z].*\.$|^true or false"):
        READERS[name](value)


FIELDS = {
    "name": Field(fields.text(10), required=True),
    "size": Field(fields.whole(0, 9), default=4, help="How large."),
    "switch": Field(fields.boolean, kept=True),
}


def test_clean_fills_in_what_a_replacement_leaves_out() -> None:
    assert fields.clean(FIELDS, {"name": "a"}, partial=False) == {"name": "a", "size": 4}
    assert fields.clean(FIELDS, {"size": 5}, partial=True) == {"size": 5}
    assert fields.clean(FIELDS, {}, partial=True) == {}


def test_clean_reports_every_error() -> None:
    with pytest.raises(Invalid) as refusal:
        fields.clean(FIELDS, {"size": "x", "what": 1}, partial=False)
    assert [fault.field for fault in refusal.value.faults] == ["what", "name", "size"]
    values: list[object] = [None, [], "text", 5]
    for nothing in values:
        with pytest.raises(Invalid):
            fields.clean(FIELDS, nothing, partial=False)


def test_the_schema_says_the_same() -> None:
    assert fields.object_schema(FIELDS) == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 10},
            "size": {
                "type": "integer",
                "minimum": 0,
                "maximum": 9,
                "default": 4,
                "description": "How large.",
            },
            "switch": {"type": "boolean"},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    assert "required" not in fields.object_schema(FIELDS, partial=True)
