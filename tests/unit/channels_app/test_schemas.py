"""Schemas of event types: nothing is fetched, and neither schema nor body can do harm."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.rules import schemas
from tests.support.receiver import Receiver

ORDER = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"$ref": "#/$defs/id"}},
    "$defs": {"id": {"type": "integer", "multipleOf": 0.01}},
}


def fault(schema: Any, body: bytes) -> str | None:
    schemas.check(schema)
    return schemas.fault(schemas.compiled(schema), body)


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (ORDER, b'{"id": 7}'),
        (True, b"null"),
        ({}, b'"text"'),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array"}, b"[]"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "array"}, b"[]"),
        ({"$anchor": "here", "properties": {"a": {"$ref": "#here"}}}, b'{"a": {}}'),
    ],
)
def test_a_good_body(schema: Any, body: bytes) -> None:
    assert fault(schema, body) is None


@pytest.mark.parametrize(
    "body",
    [b'{"id": "7"}', b"{}", b"[]", b"", b"{", b'{"id": NaN}', b"\xff", b"[" * 100_000,
     b'{"id": 1' + b"0" * 5000 + b"}"],
)  # fmt: skip
def test_a_bad_body_gets_one_short_sentence(body: bytes) -> None:
    sentence = fault(ORDER, body)
    assert sentence is not None
    assert 10 < len(sentence) < 1000


def test_the_place_of_the_fault_is_told() -> None:
    sentence = fault({"items": {"properties": {"a": {"type": "null"}}}}, b'[{}, {"a": 5}]')
    assert sentence is not None
    assert "/1/a" in sentence


def test_a_body_with_many_faults_is_left_at_the_first() -> None:
    assert fault({"items": {"type": "null"}}, b"[" + b"1," * 300_000 + b"1]")


@pytest.mark.parametrize(
    "schema",
    [
        None, 5, "object", [],
        {"type": "objekt"},
        {"required": "id"},
        {"pattern": "("},
        {"pattern": "x" * 501},
        {"properties": {"a": {"pattern": "x" * 501}}},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "other.json"},
        {"items": [{"$dynamicRef": "http://127.0.0.1/"}]},
        {"allOf": [{"$ref": "http://169.254.169.254/"}]},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$schema": "https://example.com/schema"},
        {"$schema": 5},
    ],
)  # fmt: skip
def test_what_is_no_schema_is_refused_with_a_sentence(schema: object) -> None:
    with pytest.raises(ValueError, match=r"^[A-Z$].*"):
        schemas.check(schema)


def test_nothing_is_fetched_even_for_a_schema_that_was_never_checked(receiver: Receiver) -> None:
    schema = {"$ref": receiver.url("/schema.json")}
    assert schemas.fault(schemas.compiled(schema), b"{}") is not None
    assert receiver.connections == 0


def test_a_schema_that_recurses_with_the_body_ends_with_it() -> None:
    tree = {"properties": {"child": {"$ref": "#"}}, "type": "object"}
    assert fault(tree, b'{"child": {"child": {}}}') is None
    assert fault(tree, b'{"child": {"child": 5}}') is not None
    deep = b'{"child": ' * 400 + b"{}" + b"}" * 400
    assert (fault(tree, deep) or "The ").startswith("The ")


def test_arithmetic_that_overflows_is_no_crash() -> None:
    schema = {"multipleOf": 1e-308}
    schemas.check(schema)
    assert schemas.fault(schemas.compiled(schema), b"1" + b"0" * 400) is not None


@given(st.binary(max_size=200))
def test_no_body_breaks_it(body: bytes) -> None:
    sentence = schemas.fault(schemas.compiled(ORDER), body)
    assert sentence is None or sentence.startswith("The ")
