"""Fields of serializers: any JSON value is either taken or refused with a sentence."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from channels_app.core.errors import Invalid
from channels_app.core.values import check_json
from channels_app.serializers.acks import Ack
from channels_app.serializers.base import ResourceSerializer, StrictSerializer
from channels_app.serializers.consumers import MaskedHeaders, RetryOverrides
from channels_app.serializers.fields import (
    KEPT,
    OPTIONAL,
    Flag,
    JsonValue,
    Listed,
    Number,
    OneOf,
    Slug,
    Text,
    Whole,
)
from channels_app.serializers.settings import RateLimitSerializer, RetryPolicy

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("\udfff"), inner),
    max_leaves=20,
)


class PairSerializer(StrictSerializer):
    """An object in a field."""

    a = Flag(default=False)


FIELDS = {
    "text": Text(10),
    "lines": Text(10, lines=True),
    "choice": OneOf(["a", "b"]),
    "whole": Whole(-5, 5),
    "number": Number(0.5, 5),
    "boolean": Flag(),
    "slug": Slug(),
    "nullable": Whole(0, 1, allow_null=True),
    "listed": Listed(OneOf(["a", "b"]), 3),
    "nested": PairSerializer(),
    "json": JsonValue(lambda value: check_json(value, 1000), {}, allow_null=True),
    "retry": RetryPolicy(),
    "overrides": RetryOverrides(),
    "headers": MaskedHeaders(),
    "ack": Ack(allow_null=True),
}


@pytest.mark.slow("draws JSON of any shape")
@pytest.mark.parametrize("name", FIELDS)
@given(value=ANYTHING)
def test_a_field_takes_a_value_or_refuses_it_with_a_sentence(name: str, value: Any) -> None:
    field = FIELDS[name]
    try:
        clean = field.take(value)
    except ValueError:
        return
    # Any database can store an accepted value, reading it again does not change it, and the
    # schema allows it.
    json.dumps(clean, allow_nan=False, ensure_ascii=False).encode()
    assert field.take(clean) == clean
    Draft202012Validator(field.json_schema()).validate(value)


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
        ("headers", {"Authorization": "Bearer x"}, {"Authorization": "Bearer x"}),
    ],
)
def test_good_values(name: str, value: object, clean: object) -> None:
    assert FIELDS[name].take(value) == clean


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
        ("slug", ""),
        ("text", None),
        ("nested", None),
    ],
)
def test_bad_values(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"^[A-Z].*\.$|^true or false"):
        FIELDS[name].take(value)


class ThingSerializer(ResourceSerializer):
    """A resource with each kind of field."""

    slug = Slug(read_only=True)
    name = Text(10)
    size = Whole(0, 9, default=4, help_text="How large.")
    switch = Flag(**KEPT)
    rate_limit = RateLimitSerializer()
    pair = PairSerializer(**OPTIONAL)


def taken(values: object, *, partial: bool = False) -> dict[str, Any]:
    return ThingSerializer(partial=partial).read(values)


NOTHING = {"size": 4, "rate_per_second": None, "pair": None}


def test_a_put_fills_in_defaults_and_a_patch_does_not() -> None:
    assert taken({"name": "a"}) == {"name": "a", **NOTHING}
    assert taken({"size": 5}, partial=True) == {"size": 5}
    assert taken({}, partial=True) == {}
    assert taken({"rate_limit": None}, partial=True) == {"rate_per_second": None}


def test_an_inner_object_is_whole_in_a_patch() -> None:
    assert taken({"pair": {}}, partial=True) == {"pair": {"a": False}}
    limit = {"rate_limit": {"per_second": 2}}
    assert taken(limit, partial=True) == {"rate_per_second": 2.0, "rate_burst": 1}
    with pytest.raises(Invalid) as refusal:
        taken({"rate_limit": {"burst": 2, "x": 1}}, partial=True)
    (fault,) = refusal.value.faults
    assert fault.field == "rate_limit"
    assert fault.detail == (
        "x: There is no such field; choose from per_second, burst. "
        "per_second: This field is required."
    )


def test_every_error_is_reported() -> None:
    with pytest.raises(Invalid) as refusal:
        taken({"size": "x", "what": 1, "slug": "a"})
    assert [fault.field for fault in refusal.value.faults] == ["what", "slug", "name", "size"]
    values: list[object] = [None, [], "text", 5]
    for nothing in values:
        for checked in (taken, lambda data: whole(ThingSerializer(data=data))):
            with pytest.raises(Invalid, match=r"^A JSON object is needed\.$"):
                checked(nothing)


def whole(serializer: ThingSerializer) -> None:
    serializer.is_valid(raise_exception=True)


def test_the_schema_says_the_same() -> None:
    schema = ThingSerializer().written_schema()
    del schema["properties"]["rate_limit"]
    assert schema == {
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
            "pair": {
                "anyOf": [
                    {
                        "title": "Pair",
                        "type": "object",
                        "properties": {"a": {"type": "boolean", "default": False}},
                        "additionalProperties": False,
                    },
                    {"type": "null"},
                ],
                "default": None,
            },
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    assert "required" not in ThingSerializer().written_schema(partial=True)
    shown = ThingSerializer().shown_schema()
    assert shown["required"] == [
        *("slug", "name", "size", "switch", "rate_limit", "pair"),
        *("version", "created_at", "updated_at"),
    ]
    assert "default" not in shown["properties"]["size"]
