"""Check JSON Schemas of event types at registration, and bodies against them when accepted.

A team writes the schema, and our process evaluates it. So nothing is fetched, and the time for a
body is linear in its size: patterns do not backtrack, and a schema is rejected if too many of its
parts can apply to one value (decision 27).
"""

import json
import re
from typing import Any, NamedTuple
from urllib.parse import unquote

import jsonschema_rs
from jsonschema_rs import RegexOptions, ValidationError

MAX_PATTERN_LENGTH = 500
"""Maximum length of a regular expression in a schema, in characters."""
PATTERNS = RegexOptions(size_limit=1_000_000, dfa_size_limit=1_000_000)
"""Options for Rust's regex crate, which is linear in the text; sizes of compiled patterns in
bytes."""
MAX_DEPTH = 64
"""Maximum nesting of a body; a schema that refers to itself may allow less."""
MIN_LEVELS = 5
"""Nesting for which a schema has to stay below MAX_PARTS."""
MAX_PARTS = 10_000
"""Maximum number of parts of a schema that may apply to one value."""
MAX_CHECKS = 5_000_000
"""Maximum of values in a body times parts that may apply to each."""
MAX_MATCHED = 20_000_000
"""Maximum of bytes of a body times patterns that may apply to each value, by weight."""
MAX_EXPLAINED = 10_000
"""Maximum of checks for which an error is explained, since that collects those of every branch."""
PER_WEIGHT = 16
"""Names in a part, or repetitions in a pattern, that cost as much as one part or pattern."""
_MAX_MESSAGE_LENGTH = 300
_INAPPLICABLE = "The event type's schema cannot be applied; ask its owner to fix it."

REPEATED = re.compile(r"(\)?)\{(\d+)(?:,(\d*))?\}")
"""A counted repetition: whether it repeats a group, and how often."""

# Keywords whose subschemas apply to the value itself.
_LISTS_HERE = ("allOf", "anyOf", "oneOf")
_ONES_HERE = ("not", "if", "then", "else")
_NAMED_HERE = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class Checker(NamedTuple):
    """A compiled schema. Cache it, since compiling costs more than a check."""

    validator: Any
    """The validator of jsonschema_rs; None if the stored schema is not valid any more."""
    levels: int
    """Maximum nesting of a body."""
    parts: int
    """Maximum number of parts that may apply to one value."""
    patterns: int
    """Maximum number of patterns that may apply to one value, by weight."""


def check(schema: object) -> None:
    """Check that a schema can be used (draft 2020-12 unless ``$schema`` names another).

    Raises ValueError with a sentence.
    """
    if not isinstance(schema, dict | bool):
        raise ValueError("A JSON Schema is an object.")
    _checker(schema)


def compiled(schema: Any) -> Checker:
    """Compile a stored schema."""
    try:
        return _checker(schema)
    except ValueError:
        return Checker(None, 0, 0, 0)


def fault(checker: Checker, body: bytes) -> str | None:
    """Return what is wrong with a body, as a sentence; None if it satisfies the schema."""
    if checker.validator is None:
        return _INAPPLICABLE
    containers = body.count(b"[") + body.count(b"{")
    checks = (containers + body.count(b",") + 1) * checker.parts
    if checks > MAX_CHECKS or len(body) * checker.patterns > MAX_MATCHED:
        return "The body is too large to be checked against its event type's schema."
    try:
        document = json.loads(body, parse_constant=_refuse)
        if containers > checker.levels and _is_deeper(document, checker.levels):
            return f"The body is nested more than {checker.levels} levels deep."
        if checker.validator.is_valid(document):
            return None
        if checks > MAX_EXPLAINED:
            return "The body does not satisfy its event type's schema."
        checker.validator.validate(document)
    except ValidationError as error:
        place = "/" + "/".join(str(step) for step in error.instance_path)[:200]
        return f"The body does not satisfy its event type's schema at {place}: {_short(error)}"
    # A lone surrogate is a ValueError, too.
    except (ValueError, RecursionError):
        return "The body is not JSON, and its event type has a schema."
    return None


def _checker(schema: Any) -> Checker:
    try:
        bounds = _Graph(schema).bounds()
    except RecursionError:
        raise ValueError("The schema is nested too deeply.") from None
    try:
        # jsonschema_rs.meta.validate would fetch an unknown $schema.
        validator = jsonschema_rs.validator_for(schema, pattern_options=PATTERNS, offline=True)
    except ValidationError as error:
        raise ValueError(_error_text(error)) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The schema cannot be used: {str(error)[:_MAX_MESSAGE_LENGTH]}") from None
    return Checker(validator, *bounds)


class _Subschema(NamedTuple):
    """A subschema, and the ``id()`` of the subschemas that it applies."""

    here: list[int]
    """Those applied to the same value."""
    below: list[list[int]]
    """Those applied to values inside it; of each list at most one applies to each value."""
    factor: int
    """How often those of ``here`` are applied."""
    checks: int
    """Cost of the part itself, in checks."""
    patterns: int
    """Number of its own patterns, by weight."""


class _Graph:
    """Parts of a schema that a body can reach, and how many of them may apply to one value.

    A schema that combines references to itself can apply its parts 2, 4, 8, ... times to a value,
    doubling with each level of the body, since validators do not cache results.
    """

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._anchors: dict[str, list[Any]] = {}
        self._parts: dict[int, _Subschema] = {}
        """Ordered: each part follows those that it applies to the same value."""
        named = schema.get("$schema", "") if isinstance(schema, dict) else ""
        self._collect(schema, "id" if "draft-04" in str(named) else "$id")
        self._unvisited = [schema]
        while self._unvisited:
            self._visit(self._unvisited.pop(), set())

    def bounds(self) -> tuple[int, int, int]:
        """Allowed nesting of a body, and the parts and patterns that may apply to one value."""
        parts = patterns = 0
        before: dict[int, tuple[int, int]] = {}
        for level in range(MAX_DEPTH + 1):
            counts: dict[int, tuple[int, int]] = {}
            for key, part in self._parts.items():
                counts[key] = self._cost(part, counts, before)
            root_cost = counts[id(self._root)]
            if max(root_cost) > MAX_PARTS:
                if level < MIN_LEVELS:
                    raise ValueError("The schema applies too many subschemas to one value.")
                return level - 1, parts, patterns
            parts, patterns = max(parts, root_cost[0]), max(patterns, root_cost[1])
            if not any(counts[key][0] for key in counts):
                break
            before = counts
        return MAX_DEPTH, parts, patterns

    def _cost(
        self,
        part: _Subschema,
        counts: dict[int, tuple[int, int]],
        before: dict[int, tuple[int, int]],
    ) -> tuple[int, int]:
        """Checks and patterns of a part for a value at this level of a body."""
        both = []
        for kind, own in enumerate((part.checks, part.patterns)):
            # At its own level a part costs its own checks, at deeper ones those of its subschemas.
            inside = own
            if before:
                inside = sum(
                    max((before[key][kind] for key in group), default=0) for group in part.below
                )
            here = part.factor * sum(counts[key][kind] for key in part.here)
            both.append(min(inside + here, MAX_PARTS + 1))
        return both[0], both[1]

    def _visit(self, part: Any, above: set[int]) -> None:
        """Record a part and those it applies to the same value; queue those for values inside."""
        if id(part) in self._parts:
            return
        if id(part) in above:
            raise ValueError("The schema refers to itself endlessly.")
        here, children = self._here(part), self._children(part)
        for subschema in here:
            self._visit(subschema, above | {id(part)})
        is_twice = isinstance(part, dict) and any(name.startswith("unevaluated") for name in part)
        self._parts[id(part)] = _Subschema(
            [id(subschema) for subschema in here],
            [[id(subschema) for subschema in group] for group in children],
            2 if is_twice else 1,
            1 + _names(part) // PER_WEIGHT,
            sum(map(_weight, _patterns(part))),
        )
        self._unvisited += [subschema for group in children for subschema in group]
        if any(len(pattern) > MAX_PATTERN_LENGTH for pattern in _patterns(part)):
            raise ValueError(f"A pattern has at most {MAX_PATTERN_LENGTH} characters.")

    def _here(self, part: Any) -> list[Any]:
        """Subschemas that a part applies to the same value."""
        if not isinstance(part, dict):
            return []
        subschemas = [subschema for name in _LISTS_HERE for subschema in _listed(part, name)]
        subschemas += [part[name] for name in _ONES_HERE if name in part]
        named = [subschema for name in _NAMED_HERE for subschema in _named(part, name).values()]
        subschemas += [subschema for subschema in named if isinstance(subschema, dict | bool)]
        for name in _REFERENCES:
            if name in part:
                subschemas += self._resolved(part[name])
        return subschemas

    def _children(self, part: Any) -> list[list[Any]]:
        """Subschemas that a part applies to values inside; of each list at most one per value."""
        if not isinstance(part, dict):
            return []
        items = part.get("items")
        rows = items if isinstance(items, list) else [items] if "items" in part else []
        members = [*_named(part, "properties").values(), *_member(part, "additionalProperties")]
        places = [*rows, *_listed(part, "prefixItems"), *_member(part, "additionalItems")]
        alone = [
            *_named(part, "patternProperties").values(),
            *_member(part, "unevaluatedProperties"),
            *_member(part, "unevaluatedItems"),
            *_member(part, "propertyNames"),
            *_member(part, "contains"),
        ]
        return [members, places, *([schema] for schema in alone)]

    def _resolved(self, reference: Any) -> list[Any]:
        """The subschemas that a reference may point to. Raises ValueError."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise ValueError("A schema may refer to its own parts only (#/$defs/...).")
        path = reference[1:]
        if not path:
            return [self._root]
        if not path.startswith("/"):
            anchored = self._anchors.get(path, [])
            if not anchored:
                raise ValueError(f"There is nothing at {reference[:100]} in the schema.")
            return anchored  # $dynamicRef may point to any anchor of that name
        part = self._root
        for step in path[1:].split("/"):
            key = _unescaped(step)
            if isinstance(part, dict) and key in part:
                part = part[key]
            elif isinstance(part, list) and key.isdecimal() and int(key) < len(part):
                part = part[int(key)]
            else:
                raise ValueError(f"There is nothing at {reference[:100]} in the schema.")
        if not isinstance(part, dict | bool):
            raise ValueError(f"There is no schema at {reference[:100]}.")
        return [part]

    def _collect(self, value: Any, identity: str) -> None:
        """Collect all anchors, wherever they are."""
        inside = [value]
        while inside:
            part = inside.pop()
            if isinstance(part, dict):
                for name in ("$anchor", "$dynamicAnchor"):
                    if isinstance(part.get(name), str):
                        self._anchors.setdefault(part[name], []).append(part)
                if isinstance(part.get(identity), str) and part is not value:
                    # A reference inside would be relative to that part, not to the whole schema.
                    raise ValueError(f"Only the whole schema may have an {identity}.")
            inside += _inner(part)


def _listed(part: dict[str, Any], name: str) -> list[Any]:
    value = part.get(name)
    return value if isinstance(value, list) else []


def _named(part: dict[str, Any], name: str) -> dict[str, Any]:
    value = part.get(name)
    return value if isinstance(value, dict) else {}


def _member(part: dict[str, Any], name: str) -> list[Any]:
    return [part[name]] if name in part else []


def _names(part: Any) -> int:
    """How many names and values a part is compared with."""
    if not isinstance(part, dict):
        return 0
    lists = sum(len(_listed(part, name)) for name in ("required", "enum"))
    named = sum(len(_named(part, name)) for name in ("properties", "patternProperties"))
    dependent = {**_named(part, "dependentRequired"), **_named(part, "dependencies")}
    needed = sum(len(value) for value in dependent.values() if isinstance(value, list | dict))
    return lists + named + len(dependent) + needed


def _patterns(part: Any) -> list[str]:
    if not isinstance(part, dict):
        return []
    patterns = [part.get("pattern"), *_named(part, "patternProperties")]
    return [pattern for pattern in patterns if isinstance(pattern, str)]


def _weight(pattern: str) -> int:
    """Cost of a pattern per byte: each repetition is a copy of what is repeated."""
    copies, groups = 0, 1
    for after_group, least, most in REPEATED.findall(pattern):
        count = int((most or least)[:6])
        if after_group:
            groups *= max(1, count)
        else:
            copies += count
    return 1 + groups * max(1, copies) // PER_WEIGHT


def _unescaped(step: str) -> str:
    return unquote(step).replace("~1", "/").replace("~0", "~")


def _is_deeper(document: Any, levels: int) -> bool:
    """Whether arrays and objects are nested deeper than ``levels``."""
    row = _inner([document])
    for _ in range(levels):
        row = [nested for value in row for nested in _inner(value)]
    return bool(row)


def _inner(value: Any) -> list[Any]:
    """The arrays and objects inside a value."""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [inner for inner in values if isinstance(inner, dict | list)]


def _error_text(error: Any) -> str:
    """Why the schema is not valid, as a sentence."""
    name = error.instance_path[-1] if error.instance_path else ""
    if "regex" in str(error.message):
        return (
            f"The pattern {str(error.message)[:200]} or is too large. Look-around and "
            "back-references are not available: patterns are matched in linear time."
        )
    if name == "$schema" or "meta-schema" in str(error.message):
        return "$schema must name a published draft, or be left out."
    place = "/" + "/".join(str(step) for step in error.instance_path)[:200]
    return f"This is not a JSON Schema: at {place}: {_short(error)}"


def _short(error: Any) -> str:
    message = str(error.message)
    return message if len(message) <= _MAX_MESSAGE_LENGTH else message[:_MAX_MESSAGE_LENGTH] + "..."


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON.")
