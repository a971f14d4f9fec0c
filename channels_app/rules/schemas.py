"""JSON Schemas of event types: checked when registered, and bodies against them when accepted.

A schema comes from a team and runs in our process: nothing is fetched for it, and what it says
cannot take the process down.
"""

import json
from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

LONGEST_PATTERN = 500
"""Characters of a regular expression in a schema."""
_LONGEST_MESSAGE = 300
_NO_FETCHING: Registry[Any] = Registry()
_INAPPLICABLE = "The event type's schema cannot be applied; ask its owner to mend it."


def check(schema: object) -> None:
    """Whether bodies can be checked with this (draft 2020-12 unless ``$schema`` names another).

    Raises ValueError with a sentence.
    """
    if not isinstance(schema, dict | bool):
        raise ValueError("A JSON Schema is an object.")
    kind = _kind(schema)
    if kind is None:
        raise ValueError("$schema must name a published draft, or be left out.")
    try:
        kind.check_schema(schema)  # type: ignore[arg-type]  # typed without true and false
    except SchemaError as error:
        raise ValueError(f"This is no JSON Schema: at {_place(error)}: {_short(error)}") from None
    _check_inside(schema)
    if fault(compiled(schema), b"{}") == _INAPPLICABLE:
        raise ValueError("The schema refers to itself without end, or cannot be calculated.")


def compiled(schema: Any) -> Validator:
    """A validator to be kept, since making one costs more than using it."""
    kind = _kind(schema) or Draft202012Validator
    return kind(schema, registry=_NO_FETCHING)


def fault(validator: Validator, body: bytes) -> str | None:
    """What is wrong with a body, as a sentence; None when it satisfies the schema."""
    try:
        document = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return "The body is not JSON, and its event type has a schema."
    try:
        # The first error only: a large body could have hundreds of thousands.
        error = next(iter(validator.iter_errors(document)), None)
    except (Unresolvable, RecursionError, ArithmeticError, ValueError):
        return _INAPPLICABLE
    if error is None:
        return None
    return f"The body does not satisfy its event type's schema at {_place(error)}: {_short(error)}"


def _kind(schema: Any) -> type[Validator] | None:
    named = schema.get("$schema") if isinstance(schema, dict) else None
    if named is None:
        return Draft202012Validator
    if not isinstance(named, str):
        return None
    return validator_for(schema, default=None)  # type: ignore[arg-type]  # typed without None


def _check_inside(schema: Any) -> None:
    root = DRAFT202012.create_resource(schema)
    resolver = _NO_FETCHING.with_resource("", root).resolver()
    for word, value in _words(schema):
        if word in {"$ref", "$dynamicRef"} and isinstance(value, str):
            if not value.startswith("#"):
                raise ValueError("A schema may refer to its own parts only (#/$defs/...).")
            try:
                resolver.lookup(value)
            except Unresolvable:
                raise ValueError(f"There is nothing at {value[:100]} in the schema.") from None
        if word == "pattern" and isinstance(value, str) and len(value) > LONGEST_PATTERN:
            raise ValueError(f"A pattern has at most {LONGEST_PATTERN} characters.")


def _words(schema: object) -> Iterator[tuple[str, object]]:
    if isinstance(schema, dict):
        yield from schema.items()
        for value in schema.values():
            yield from _words(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _words(value)


def _place(error: Any) -> str:
    return "/" + "/".join(str(step) for step in error.absolute_path)[:200]


def _short(error: Any) -> str:
    message = str(error.message)
    return message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "..."


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON.")
