"""Convert message bodies to the types in a handler's annotations."""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Callable
from datetime import date, datetime
from typing import Any, Union

Parser = Callable[[bytes], Any]

_UNIONS = (Union, getattr(types, "UnionType", Union))
"""``Optional[X]`` and, from Python 3.10 on, ``X | None``."""


def parser_for(annotation: Any) -> Parser:
    """Return the function that converts a body to this type; it raises `ValueError`.

    Supports pydantic models, dataclasses, ``bytes``, ``str`` and the types of JSON (``dict``,
    ``list``, ``Any``). Raises `TypeError` for other types.
    """
    if hasattr(annotation, "model_validate_json"):
        parse: Parser = annotation.model_validate_json
        return parse
    if dataclasses.is_dataclass(annotation):
        return lambda body: _build(annotation, json.loads(body))
    if annotation is bytes:
        return bytes
    if annotation is str:
        return bytes.decode
    origin = typing.get_origin(annotation) or annotation
    if annotation is Any or origin in (dict, list):
        return json.loads
    raise TypeError(
        f"A body cannot be converted to {annotation!r}: use a pydantic model, a dataclass, dict,"
        " list, str or bytes."
    )


def _build(kind: Any, value: Any) -> Any:
    """Convert a JSON value to the type; raises `ValueError` if it does not fit."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if kind is Any:
        return value
    if origin in _UNIONS:
        return _first_that_fits(arguments, value)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value)
    if origin is list and isinstance(value, list):
        return [_build(arguments[0], item) for item in value]
    if origin is dict and isinstance(value, dict):
        return {name: _build(arguments[1], item) for name, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    if kind in (datetime, date) and isinstance(value, str):
        return kind.fromisoformat(value.replace("Z", "+00:00"))
    if kind is float and type(value) is int:
        return float(value)
    # Not `isinstance`: in Python, True is an instance of int.
    if type(value) is not (origin or kind):
        raise ValueError(f"{value!r} is not of type {getattr(kind, '__name__', kind)}")
    return value


def _first_that_fits(kinds: tuple[Any, ...], value: Any) -> Any:
    for kind in kinds:
        try:
            return _build(kind, value)
        except ValueError:
            continue
    raise ValueError(f"{value!r} is of none of the types {kinds}")


def _build_dataclass(kind: Any, value: Any) -> Any:
    """Convert an object to a dataclass. Ignores unknown fields, because producers may add some."""
    if not isinstance(value, dict):
        raise ValueError(f"{kind.__name__} needs a JSON object, not {value!r}")
    hints = typing.get_type_hints(kind)
    known = {field.name for field in dataclasses.fields(kind) if field.init}
    fields = {}
    for name in known & value.keys():
        try:
            fields[name] = _build(hints[name], value[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError(str(error)) from None
