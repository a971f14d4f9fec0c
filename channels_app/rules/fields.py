"""What a caller may write into a field, as small readers: the clean value, or why not.

A reader takes what JSON gave and returns what is stored. It raises ValueError with a sentence for
anything else: there is no value, however odd, that a reader lets through to the database.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from channels_app.rules import names

Reader: TypeAlias = Callable[[object], Any]
Check: TypeAlias = Callable[[str], str | None]

MOST_JSON_DEPTH = 32
"""Levels of a JSON value that people register; nothing real comes near."""
MASK = "********"
"""Stands for a stored value that is not shown; written back, it keeps what is stored."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One field that cannot be used, and what to do about it."""

    field: str
    detail: str


class BadValues(ValueError):
    """Values that cannot be used, each with its sentence."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(" ".join(f"{fault.field}: {fault.detail}" for fault in faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class Field:
    """A field that may be written."""

    read: Reader
    default: Any = None
    """What a replacing PUT stores when the field is absent."""
    kept: bool = False
    """Absent from a replacing PUT it stays as it is: a switch that people use in between."""
    required: bool = False


def clean(fields: Mapping[str, Field], values: object, *, partial: bool) -> dict[str, Any]:
    """``values`` with every field read; ``partial`` leaves absent ones out, else defaults fill in.

    Raises BadValues with every fault at once.
    """
    if not isinstance(values, Mapping):
        raise BadValues([Fault("", "A JSON object is needed.")])
    faults = [
        Fault(str(name)[:100], f"There is no such field; choose from {', '.join(fields)}.")
        for name in values
        if name not in fields
    ]
    cleaned: dict[str, Any] = {}
    for name, field in fields.items():
        if name in values:
            try:
                cleaned[name] = field.read(values[name])
            except ValueError as error:
                faults.append(Fault(name, str(error)))
        elif field.required and not partial:
            faults.append(Fault(name, "This field is required."))
        elif not partial and not field.kept:
            cleaned[name] = field.default
    if faults:
        raise BadValues(faults)
    return cleaned


def text(most: int, *, check: Check | None = None, lines: bool = False) -> Reader:
    """Text of up to ``most`` characters without control characters; ``lines`` allows breaks."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("Text is needed.")
        if len(value) > most:
            raise ValueError(f"At most {most} characters are stored.")
        allowed = "\n\r\t" if lines else ""
        if any(_is_control(letter) and letter not in allowed for letter in value):
            raise ValueError("Control characters and unpaired surrogates cannot be stored.")
        if check is not None and (fault := check(value)):
            raise ValueError(fault)
        return value

    return read


def choice(*options: str) -> Reader:
    """One of these words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in options:
            raise ValueError(f"Choose from {', '.join(options)}.")
        return value

    return read


def boolean(value: object) -> bool:
    """true or false, and not what merely looks like it."""
    if not isinstance(value, bool):
        raise ValueError("true or false is needed.")
    return value


def whole(low: int, high: int) -> Reader:
    """A whole number from ``low`` to ``high``."""

    def read(value: object) -> int:
        # True is an int to Python, and not a number to anybody who writes JSON.
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"A whole number from {low} to {high} is needed.")
        return value

    return read


def number(low: float, high: float) -> Reader:
    """A finite number from ``low`` to ``high``."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"A number from {low:g} to {high:g} is needed.")
        # Comparing first: float() of a huge int overflows, and NaN compares false.
        if not low <= value <= high or not math.isfinite(value):
            raise ValueError(f"A number from {low:g} to {high:g} is needed.")
        return float(value)

    return read


def nullable(read: Reader) -> Reader:
    """null, or what ``read`` takes."""
    return lambda value: None if value is None else read(value)


def listed(read: Reader, most: int) -> Reader:
    """A list of up to ``most`` different entries that ``read`` takes."""

    def read_all(value: object) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise ValueError("A list is needed.")
        if len(value) > most:
            raise ValueError(f"At most {most} entries are stored.")
        entries = [_entry(read, position, entry) for position, entry in enumerate(value, 1)]
        if any(entry in entries[:position] for position, entry in enumerate(entries)):
            raise ValueError("An entry is there twice.")
        return entries

    return read_all


def nested(fields: Mapping[str, Field]) -> Reader:
    """An object with these fields."""

    def read(value: object) -> dict[str, Any]:
        try:
            return clean(fields, value, partial=False)
        except BadValues as bad:
            raise ValueError(
                " ".join(f"{fault.field}: {fault.detail}".lstrip(": ") for fault in bad.faults)
            ) from None

    return read


def json_value(most_bytes: int) -> Reader:
    """Any JSON value that a database can hold, up to ``most_bytes`` when written out."""

    def read(value: object) -> Any:
        _check_depth(value, MOST_JSON_DEPTH)
        try:
            size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
        except UnicodeEncodeError:
            raise ValueError("Unpaired surrogates cannot be stored.") from None
        except (TypeError, ValueError):
            raise ValueError("A JSON value is needed; NaN and Infinity are none.") from None
        if size > most_bytes:
            raise ValueError(f"At most {most_bytes} bytes are stored.")
        return value

    return read


def slug(value: object) -> str:
    """The name of a channel, producer, consumer or team."""
    return text(names.LONGEST_SLUG, check=names.slug)(value)  # type: ignore[no-any-return]


def _entry(read: Reader, position: int, entry: object) -> Any:
    try:
        return read(entry)
    except ValueError as error:
        raise ValueError(f"Entry {position}: {error}") from None


def _check_depth(value: object, levels: int) -> None:
    if levels < 0:
        raise ValueError(f"At most {MOST_JSON_DEPTH} levels are stored.")
    inner: object = list(value.values()) if isinstance(value, dict) else value
    if isinstance(inner, list):
        for entry in inner:
            _check_depth(entry, levels - 1)


def _is_control(letter: str) -> bool:
    code = ord(letter)
    return code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000
