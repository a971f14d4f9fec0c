"""Validate the fields that a caller writes, with small readers.

A reader takes a value from parsed JSON and returns the value to store. For every other value it
raises ValueError with a sentence, so that no invalid value reaches the database. Each reader
carries the JSON Schema of what it takes, so that the documentation cannot differ from the code.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from channels_app.core import names
from channels_app.core.errors import FieldError, Invalid

Reader: TypeAlias = Callable[[object], Any]
Check: TypeAlias = Callable[[str], str | None]

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNPRINTABLE_LINES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

MAX_JSON_DEPTH = 32
"""Maximum nesting of a JSON value in a registration; real values are far below it."""
MASK = "********"
"""Shown instead of a stored secret; writing it back keeps the stored value."""


@dataclass(frozen=True, slots=True)
class Described:
    """A reader, with a JSON Schema of what it takes."""

    read: Reader
    schema: Mapping[str, Any]

    def __call__(self, value: object) -> Any:
        """The value to store. Raises ValueError with a sentence."""
        return self.read(value)


@dataclass(frozen=True, slots=True)
class Field:
    """A field that callers may write."""

    read: Reader
    default: Any = None
    """Value that a replacing PUT stores if the field is absent."""
    kept: bool = False
    """A replacing PUT without this field leaves it unchanged; for switches that people use."""
    required: bool = False
    help: str = ""
    """Description for the documentation."""


def clean(fields: Mapping[str, Field], values: object, *, partial: bool) -> dict[str, Any]:
    """Read every field of ``values``. Absent ones are left out if ``partial``, else get defaults.

    Raises Invalid with all errors.
    """
    if not isinstance(values, Mapping):
        raise Invalid.of([FieldError("", "A JSON object is needed.")])
    faults = [
        FieldError(str(name)[:100], f"There is no such field; choose from {', '.join(fields)}.")
        for name in values
        if name not in fields
    ]
    cleaned: dict[str, Any] = {}
    for name, field in fields.items():
        if name in values:
            try:
                cleaned[name] = field.read(values[name])
            except ValueError as error:
                faults.append(FieldError(name, str(error)))
        elif field.required and not partial:
            faults.append(FieldError(name, "This field is required."))
        elif not partial and not field.kept:
            cleaned[name] = field.default
    if faults:
        raise Invalid.of(faults)
    return cleaned


def text(most: int, *, check: Check | None = None, lines: bool = False, **schema: Any) -> Described:
    """Text of up to ``most`` characters, no control characters; ``lines`` allows line breaks."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("Text is needed.")
        if len(value) > most:
            raise ValueError(f"At most {most} characters are stored.")
        if (_UNPRINTABLE_LINES if lines else _UNPRINTABLE).search(value):
            raise ValueError("Control characters and unpaired surrogates cannot be stored.")
        if check is not None and (fault := check(value)):
            raise ValueError(fault)
        return value

    return Described(read, {"type": "string", "maxLength": most, **schema})


def one_line(most: int) -> Described:
    """Text of up to ``most`` characters; control characters become spaces.

    For what programs report, such as the error of a handler, which must not fail for a line break.
    """
    plain = text(most)

    def read(value: object) -> str:
        folded = _UNPRINTABLE.sub(" ", value) if isinstance(value, str) else value
        return str(plain.read(folded))

    return Described(read, plain.schema)


def choice(*options: str) -> Described:
    """One of these words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in options:
            raise ValueError(f"Choose from {', '.join(options)}.")
        return value

    return Described(read, {"type": "string", "enum": list(options)})


def whole(low: int, high: int) -> Described:
    """A whole number from ``low`` to ``high``."""

    def read(value: object) -> int:
        found = whole_number(value)
        if found is None or not low <= found <= high:
            raise ValueError(f"A whole number from {low} to {high} is needed.")
        return found

    return Described(read, {"type": "integer", "minimum": low, "maximum": high})


def whole_number(value: object) -> int | None:
    """The integer that a JSON number stands for, such as 3.0; None for any other value."""
    # In Python True is an int, but in JSON it is not a number.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def number(low: float, high: float) -> Described:
    """A finite number from ``low`` to ``high``."""

    def read(value: object) -> float:
        fault = f"A number from {low:g} to {high:g} is needed."
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(fault)
        # Compare before float(), which overflows for a huge int. NaN compares false.
        if not low <= value <= high:
            raise ValueError(fault)
        return float(value)

    return Described(read, {"type": "number", "minimum": low, "maximum": high})


def nullable(reader: Reader) -> Described:
    """null, or a value that ``reader`` takes."""
    return Described(
        lambda value: None if value is None else reader(value),
        {"anyOf": [schema_of(reader), {"type": "null"}]},
    )


def listed(reader: Reader, most: int) -> Described:
    """A list of up to ``most`` different entries that ``reader`` takes."""

    def read(value: object) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise ValueError("A list is needed.")
        if len(value) > most:
            raise ValueError(f"At most {most} entries are stored.")
        entries = [_entry(reader, position, entry) for position, entry in enumerate(value, 1)]
        if any(entry in entries[:position] for position, entry in enumerate(entries)):
            raise ValueError("An entry occurs twice.")
        return entries

    schema = {"type": "array", "items": schema_of(reader), "maxItems": most, "uniqueItems": True}
    return Described(read, schema)


def nested(fields: Mapping[str, Field], title: str = "") -> Described:
    """An object with these fields; ``title`` names it in the API's description."""

    def read(value: object) -> dict[str, Any]:
        try:
            return clean(fields, value, partial=False)
        except Invalid as bad:
            faults = [f"{fault.field}: {fault.detail}" for fault in bad.faults]
            raise ValueError(" ".join(faults).removeprefix(": ")) from None

    schema = object_schema(fields)
    return Described(read, {"title": title, **schema} if title else schema)


def json_value(most_bytes: int) -> Described:
    """Any JSON value that a database can store, of up to ``most_bytes`` as text."""

    def read(value: object) -> Any:
        _check_depth(value, MAX_JSON_DEPTH)
        try:
            size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
        except UnicodeEncodeError:
            raise ValueError("Unpaired surrogates cannot be stored.") from None
        except (TypeError, ValueError):
            raise ValueError("A JSON value is needed; NaN and Infinity are not JSON.") from None
        if size > most_bytes:
            raise ValueError(f"At most {most_bytes} bytes are stored.")
        return value

    return Described(read, {})


def schema_of(reader: Reader) -> Mapping[str, Any]:
    """The JSON Schema of what a reader takes; {} (anything) for a reader without one."""
    return reader.schema if isinstance(reader, Described) else {}


def object_schema(fields: Mapping[str, Field], *, partial: bool = False) -> dict[str, Any]:
    """The JSON Schema of an object with these fields, as ``clean`` takes it."""
    properties = {}
    for name, field in fields.items():
        properties[name] = dict(schema_of(field.read))
        if field.help:
            properties[name]["description"] = field.help
        if not (partial or field.required or field.kept):
            properties[name]["default"] = field.default
    required = [name for name, field in fields.items() if field.required and not partial]
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})


def _read_boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false is needed.")
    return value


boolean = Described(_read_boolean, {"type": "boolean"})
slug = text(
    names.MAX_SLUG_LENGTH,
    check=names.slug,
    pattern=f"^[a-z0-9][a-z0-9._-]{{0,{names.MAX_SLUG_LENGTH - 1}}}$",
)
"""The name of a channel, producer, consumer or team."""


def _entry(reader: Reader, position: int, entry: object) -> Any:
    try:
        return reader(entry)
    except ValueError as error:
        raise ValueError(f"Entry {position}: {error}") from None


def _check_depth(value: object, levels: int) -> None:
    if levels < 0:
        raise ValueError(f"At most {MAX_JSON_DEPTH} levels are stored.")
    inner: object = list(value.values()) if isinstance(value, dict) else value
    if isinstance(inner, list):
        for entry in inner:
            _check_depth(entry, levels - 1)
