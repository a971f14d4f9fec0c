"""Schemas of event types: nothing is fetched, and no schema or body exhausts CPU or memory."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels_app.core import json_schema
from tests.support.receiver import Receiver

ORDER = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"$ref": "#/$defs/id"}},
    "$defs": {"id": {"type": "integer", "multipleOf": 0.01}},
}


def fault(schema: Any, body: bytes) -> str | None:
    json_schema.check(schema)
    return json_schema.fault(json_schema.compiled(schema), body)


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
def test_an_invalid_body_gets_one_short_error(body: bytes) -> None:
    sentence = fault(ORDER, body)
    assert sentence is not None
    assert 10 < len(sentence) < 1000


def test_the_position_of_the_error_is_named() -> None:
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
        {"pattern": "(?=a)b"},
        {"pattern": r"(a)\1"},
        {"pattern": "((x{500}){500}){500}"},
        {"patternProperties": {"(?<=a)b": True}},
        {"const": "\ud800"},
        {"$defs": {"a": {"$id": "https://example.com/a", "$ref": "#"}}},
    ],
)  # fmt: skip
def test_an_invalid_schema_is_refused_with_an_error_message(schema: object) -> None:
    with pytest.raises(ValueError, match=r"^[A-Z$].*"):
        json_schema.check(schema)


def test_nothing_is_fetched_even_for_a_schema_that_was_never_checked(receiver: Receiver) -> None:
    schema = {"$ref": receiver.url("/schema.json")}
    assert json_schema.fault(json_schema.compiled(schema), b"{}") is not None
    assert receiver.connections == 0


def test_an_unknown_draft_is_not_fetched(receiver: Receiver) -> None:
    with pytest.raises(ValueError, match="published draft"):
        json_schema.check({"$schema": receiver.url("/draft")})
    assert receiver.connections == 0


# -- Time: without a limit each of these takes minutes or more ------------------------------------


def doubling(times: int) -> dict[str, Any]:
    """Return a small schema that applies the last of its parts 2**times times."""
    parts: dict[str, Any] = {
        f"p{number}": {"anyOf": 2 * [{"$ref": f"#/$defs/p{number + 1}"}]} for number in range(times)
    }
    return {"$ref": "#/$defs/p0", "$defs": {**parts, f"p{times}": {"type": "null"}}}


def union(members: int) -> dict[str, Any]:
    """Return a schema of several kinds of objects, each of which nests the others under "args"."""
    kinds = [
        {"properties": {"kind": {"const": number}, "args": {"items": {"$ref": "#"}}}}
        for number in range(members)
    ]
    return {"oneOf": kinds}


@pytest.mark.trap("a pattern that backtracks")
@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(a|aa)+$", "^(a|a)*$", "(.*a){12}$", "^(.?.?)*$x"]
)
def test_a_pattern_takes_time_by_the_length_of_its_text_alone(pattern: str) -> None:
    text = b'"' + 50_000 * b"a" + b'b"'
    assert fault({"pattern": pattern}, text)
    assert fault({"patternProperties": {pattern: False}}, b"{" + text + b": 1}") is None


@pytest.mark.trap("a schema that grows exponentially")
def test_parts_that_double_are_counted_before_they_are_applied() -> None:
    json_schema.check(doubling(10))
    with pytest.raises(ValueError, match="too many subschemas"):
        json_schema.check(doubling(40))
    with pytest.raises(ValueError, match="too many subschemas"):
        json_schema.check(union(200))


@pytest.mark.trap("a schema that grows exponentially")
def test_parts_that_double_with_each_level_allow_fewer_levels() -> None:
    checker = json_schema.compiled(union(2))
    assert checker.levels < json_schema.MAX_DEPTH
    assert checker.parts <= json_schema.MAX_PARTS

    def nested(levels: int) -> bytes:
        return b'{"kind": 1, "args": [' * levels + b"]}" * levels

    assert json_schema.fault(checker, nested(checker.levels // 2)) is None
    assert "levels deep" in (json_schema.fault(checker, nested(checker.levels)) or "")


def test_validation_work_is_bounded() -> None:
    schema = {"items": {"anyOf": [{"const": number} for number in range(100)]}}
    assert fault(schema, b"[" + b"7," * 1000 + b"7]") is None
    assert "too large to be checked" in (fault(schema, b"[" + b"7," * 100_000 + b"7]") or "")


def test_patterns_are_charged_by_the_bytes_that_they_read() -> None:
    heavy = {"allOf": 50 * [{"pattern": "^[01]*1[01]{900}$"}]}
    assert fault(heavy, b'"' + b"01" * 1000 + b'"') is None
    assert "too large to be checked" in (fault(heavy, b'"' + b"01" * 100_000 + b'"') or "")
    light = {"properties": {name: {"pattern": "^[a-z]{1,40}$"} for name in "abcdefgh"}}
    assert fault(light, b'{"a": "' + b"x" * 500_000 + b'"}')
    assert "too large" not in (fault(light, b'{"a": "' + b"x" * 500_000 + b'"}') or "")


@pytest.mark.parametrize(
    ("pattern", "weight"),
    [("^a+$", 1), (r"^\d{4}-\d{2}-\d{2}$", 1), ("^([0-9a-f]{4}-){3}[0-9a-f]{12}$", 4),
     ("a{1,255}", 16), ("((a{30}){30}){2}", 113), ("a{3,}", 1), ("(?=", 1)],
)  # fmt: skip
def test_repetitions_make_a_pattern_heavier(pattern: str, weight: int) -> None:
    assert json_schema._weight(pattern) == weight


def test_an_error_in_many_branches_is_reported_without_storing_them() -> None:
    """The error message once kept the faults of each branch: gigabytes for a body of 6 KB."""
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(50):
        schema = {"anyOf": [schema]}
    said = fault({"anyOf": [{"items": schema}]}, b"[" + b"1," * 3000 + b"1]")
    assert said == "The body does not satisfy its event type's schema."


def test_property_names_count_towards_the_limit() -> None:
    names = [f"name{number}" for number in range(3000)]
    schema = {"items": {"dependentRequired": {"x": names}, "required": ["x"]}}
    assert json_schema.compiled(schema).parts > 100


@pytest.mark.parametrize("depth", [json_schema.MAX_DEPTH, json_schema.MAX_DEPTH + 1])
def test_how_deep_a_body_may_be(depth: int) -> None:
    found = fault(True, b"[" * depth + b"]" * depth)
    assert (found is None) == (depth == json_schema.MAX_DEPTH)


@given(st.recursive(st.none(), lambda inner: st.lists(inner, max_size=3)), st.integers(0, 6))
def test_depth_is_that_of_the_deepest_array(document: Any, levels: int) -> None:
    def depth(value: Any) -> int:
        return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

    checker = json_schema.compiled(True)._replace(levels=levels)
    said = json_schema.fault(checker, json.dumps(document).encode())
    assert (said is not None) == (depth(document) > levels)


def test_a_schema_that_was_stored_once_and_is_refused_today_fails_bodies_with_a_sentence() -> None:
    checker = json_schema.compiled({"pattern": "(?=a)b"})
    assert "cannot be applied" in (json_schema.fault(checker, b'"b"') or "")


def test_a_schema_that_recurses_with_the_body_ends_with_it() -> None:
    tree = {"properties": {"child": {"$ref": "#"}}, "type": "object"}
    assert fault(tree, b'{"child": {"child": {}}}') is None
    assert fault(tree, b'{"child": {"child": 5}}') is not None
    deep = b'{"child": ' * 400 + b"{}" + b"}" * 400
    assert (fault(tree, deep) or "The ").startswith("The ")


def test_arithmetic_that_overflows_is_no_crash() -> None:
    schema = {"multipleOf": 1e-308}
    json_schema.check(schema)
    assert json_schema.fault(json_schema.compiled(schema), b"1" + b"0" * 400) is None


@given(st.binary(max_size=200))
def test_no_body_breaks_it(body: bytes) -> None:
    sentence = json_schema.fault(json_schema.compiled(ORDER), body)
    assert sentence is None or sentence.startswith("The ")
