"""Define REST framework's fields with strict types, our sentences and a JSON Schema each.

The framework's own fields take "5" for 5 and "true" for true, which JSON tells apart. The schema
comes from the field that checks the value, so that the documentation cannot differ from the code.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

from rest_framework import serializers
from rest_framework.fields import SkipField, empty
from rest_framework.settings import api_settings

from channels_app.core import names, times, values

Schema: TypeAlias = dict[str, Any]
Check: TypeAlias = Callable[[Any], str | None]
"""Returns what is wrong with a value; None if it is valid."""
T = TypeVar("T")
WHOLE_OBJECT = api_settings.NON_FIELD_ERRORS_KEY
"""The framework's key of errors that belong to no field."""

OPTIONAL: Mapping[str, Any] = {"allow_null": True, "default": None}
"""Options of a field whose value may be null, which a replacing PUT without it stores."""
KEPT: Mapping[str, Any] = {"required": False}
"""Options of a field that a replacing PUT without it leaves unchanged; for switches."""


class Strict(serializers.Field[Any, Any, Any, Any]):
    """What our fields have in common: a schema, and one sentence for all values of wrong types.

    ``sometimes``: what is shown may lack it. ``from_context``: the value is not in the row; a
    function in the context of the outermost serializer returns it for the row. Without the function
    the field is left out.
    """

    value_schema: Mapping[str, Any] = {}
    """The JSON Schema of a value that is not null."""

    def __init__(
        self, *args: Any, sometimes: bool = False, from_context: bool = False, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.sometimes = sometimes
        self.is_from_context = from_context

    @property
    def has_default(self) -> bool:
        """Whether a replacing PUT without the field stores something."""
        return self.default is not empty

    def fail(self, key: str, **words: Any) -> Any:
        """Raise the error of that name; null gets the error of any value of a wrong type."""
        super().fail("invalid" if key == "null" else key, **words)

    def run_validation(self, data: Any = empty) -> Any:
        """As in REST framework, without validators: ``to_internal_value`` checks everything."""
        is_empty, data = self.validate_empty_values(data)
        return data if is_empty else self.to_internal_value(data)

    def take(self, value: Any) -> Any:
        """The checked value. Raises ValueError with the field's sentence."""
        try:
            return self.run_validation(value)
        except serializers.ValidationError as error:
            raise ValueError(sentence(error.detail)) from None

    def checked(self, check: Callable[[Any], T], value: Any) -> T:
        """What ``check`` returns; a ValueError that it raises becomes the field's error."""
        try:
            return check(value)
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from None

    def get_attribute(self, instance: Any) -> Any:
        """The value of the row, or what the context's function returns for it."""
        if not self.is_from_context:
            return super().get_attribute(instance)
        compute = self.context.get(str(self.source))
        if compute is None:
            raise SkipField
        return compute(instance)

    def json_schema(self, *, shown: bool = False) -> Schema:
        """The JSON Schema of what the field takes; of what it shows if it only shows."""
        shown = shown or self.read_only
        schema = self.schema_of_value(shown)
        if self.allow_null and schema and "null" not in schema.get("type", ()):
            schema = _nullable(schema, shown)
        return schema | ({"description": self.help_text} if self.help_text else {})

    def schema_of_value(self, shown: bool) -> Schema:
        """The JSON Schema of a value that is not null."""
        return dict(self.value_schema)


class Text(Strict, serializers.CharField):
    """Text of up to ``most`` characters, no control characters; ``lines`` allows line breaks.

    ``schema`` adds to the JSON Schema.
    """

    default_error_messages = {"invalid": "Text is needed."}

    def __init__(
        self,
        most: int | None = None,
        *,
        check: Check | None = None,
        lines: bool = False,
        schema: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._most, self._check, self._lines = most, check, lines
        length = {} if most is None else {"maxLength": most}
        self.value_schema = {"type": "string", **length, **(schema or {})}

    def to_internal_value(self, data: Any) -> str:
        """The text, unchanged."""
        if not isinstance(data, str):
            return str(self.fail("invalid"))
        if self._most is not None and len(data) > self._most:
            raise serializers.ValidationError(f"At most {self._most} characters are stored.")
        if values.is_unprintable(data, lines=self._lines):
            fault: str | None = "Control characters and unpaired surrogates cannot be stored."
        else:
            fault = self._check(data) if self._check else None
        if fault:
            raise serializers.ValidationError(fault)
        return data


class Slug(Text):
    """The name of a channel, producer, consumer or team."""

    def __init__(self, **options: Any) -> None:
        pattern = f"^[a-z0-9][a-z0-9._-]{{0,{names.MAX_SLUG_LENGTH - 1}}}$"
        schema = {"pattern": pattern}
        super().__init__(names.MAX_SLUG_LENGTH, check=names.slug, schema=schema, **options)


class EventTypeName(Text):
    """The name of an event type."""

    def __init__(self, **options: Any) -> None:
        schema = {"pattern": r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$"}
        most = names.MAX_EVENT_TYPE_LENGTH
        super().__init__(most, check=names.event_type, schema=schema, **options)


class Description(Text):
    """What people write about an object."""

    def __init__(self) -> None:
        super().__init__(2000, lines=True, default="", help_text="For people.")


class EventPattern(Text):
    """An event type, or a pattern for several."""

    def __init__(self, **options: Any) -> None:
        super().__init__(200, check=names.validate_pattern, **options)


class OneOf(Strict, serializers.ChoiceField):
    """One of these words; ``title`` names the schema in the OpenAPI document."""

    def __init__(self, choices: Iterable[str], *, title: str = "", **options: Any) -> None:
        super().__init__(words := list(choices), **options)
        self._words = words
        self.error_messages["invalid"] = f"Choose from {', '.join(words)}."
        named = {"title": title} if title else {}
        self.value_schema = {**named, "type": "string", "enum": words}

    def to_internal_value(self, data: Any) -> str:
        """The word."""
        return data if isinstance(data, str) and data in self._words else self.fail("invalid")


class _Between(Strict):
    """A number from ``low`` to ``high``."""

    kind, noun = "", ""
    """Its type in JSON Schema, and for people."""

    def __init__(self, low: float = -math.inf, high: float = math.inf, **options: Any) -> None:
        super().__init__(**options)
        self._low, self._high = low, high
        form = "g" if self.kind == "number" else ""
        self.error_messages["invalid"] = (
            f"{self.noun} from {low:{form}} to {high:{form}} is needed."
        )
        limits = {"minimum": low, "maximum": high}
        finite = {word: limit for word, limit in limits.items() if math.isfinite(limit)}
        self.value_schema = {"type": self.kind, **finite}

    def within(self, number: Any) -> Any:
        """The number, if it is in the range. NaN compares false."""
        return number if self._low <= number <= self._high else self.fail("invalid")


class Whole(_Between, serializers.IntegerField):
    """A whole number from ``low`` to ``high``; 3.0 is one, as in JSON."""

    kind, noun = "integer", "A whole number"

    def to_internal_value(self, data: Any) -> Any:
        """The number as an int."""
        number = values.whole_number(data)
        return self.fail("invalid") if number is None else self.within(number)


class Digits(Whole):
    """A whole number as text, in a query or a form."""

    def to_internal_value(self, data: Any) -> Any:
        """The number."""
        is_number = isinstance(data, str) and data.isascii() and data.isdecimal() and len(data) < 10
        return super().to_internal_value(int(data) if is_number else data)


class Number(_Between, serializers.FloatField):
    """A finite number from ``low`` to ``high``."""

    kind, noun = "number", "A number"

    def to_internal_value(self, data: Any) -> float:
        """The number as a float."""
        if not isinstance(data, int | float) or isinstance(data, bool):
            self.fail("invalid")
        # Compare before float(), which overflows for a huge int.
        return float(self.within(data))


class Flag(Strict, serializers.BooleanField):
    """true or false."""

    default_error_messages = {"invalid": "true or false is needed."}
    value_schema = {"type": "boolean"}

    def to_internal_value(self, data: Any) -> bool:
        """The value, unchanged."""
        return data if isinstance(data, bool) else bool(self.fail("invalid"))


class JsonValue(Strict, serializers.JSONField):
    """A value of JSON that ``check`` does not refuse by a ValueError, stored as it was written."""

    def __init__(
        self, check: Callable[[Any], object] | None, schema: Mapping[str, Any], **options: Any
    ) -> None:
        super().__init__(**options)
        self._check, self.value_schema = check, schema

    def to_internal_value(self, data: Any) -> Any:
        """The value, unchanged."""
        if self._check is not None:
            self.checked(self._check, data)
        return data

    def to_representation(self, value: Any) -> Any:
        """The value, unchanged."""
        return value


class Listed(Strict, serializers.ListField):
    """A list of ``least`` to ``most`` different entries."""

    child: Any
    default_error_messages = {
        "invalid": "A list is needed.",
        "empty": "Name at least one, or leave the field out.",
    }

    def __init__(
        self, child: Strict, most: float = math.inf, *, least: int = 0, **options: Any
    ) -> None:
        super().__init__(child=child, **options)
        self._most, self._least = most, least

    def to_internal_value(self, data: Any) -> list[Any]:
        """The entries; an error names the first bad one."""
        if not isinstance(data, list | tuple):
            self.fail("invalid")
        if len(data) > self._most:
            raise serializers.ValidationError(f"At most {self._most} entries are stored.")
        if len(data) < self._least:
            self.fail("empty")
        entries = []
        for position, entry in enumerate(data, 1):
            try:
                entries.append(self.child.run_validation(entry))
            except serializers.ValidationError as error:
                fault = f"Entry {position}: {sentence(error.detail)}"
                raise serializers.ValidationError(fault) from None
        if _repeats(entries):
            raise serializers.ValidationError("An entry occurs twice.")
        return entries

    def schema_of_value(self, shown: bool) -> Schema:
        """The schema of the entries, and how many."""
        schema = {"type": "array", "items": self.child.json_schema(shown=shown)}
        schema |= {"minItems": self._least} if self._least else {}
        schema |= {"maxItems": self._most} if math.isfinite(self._most) else {}
        return schema if shown else schema | {"uniqueItems": True}


class RelatedSlug(Strict, serializers.SlugRelatedField[Any]):
    """A row, by its ``slug``; ``noun`` names its kind."""

    value_schema = Slug().value_schema

    def __init__(self, noun: str, *, queryset: Any, **options: Any) -> None:
        super().__init__("slug", queryset=queryset, **options)
        self.error_messages["does_not_exist"] = f"There is no {noun} {{value}}."

    def to_internal_value(self, data: Any) -> Any:
        """The row."""
        return super().to_internal_value(Slug().run_validation(data))


class Instant(Strict, serializers.DateTimeField):
    """An instant, shown as the API writes every instant."""

    default_error_messages = {"invalid": times.HOW}
    value_schema = {"type": "string", "format": "date-time"}

    def to_representation(self, value: Any) -> str:
        """RFC 3339 with milliseconds; text is that already, as in stored JSON."""
        return value if isinstance(value, str) else times.text(value)


class WrittenInstant(Instant):
    """An instant as people and programs write it."""

    value_schema = {
        "anyOf": [
            Instant.value_schema,
            {"type": "integer", "description": "Milliseconds since 1970."},
        ]
    }

    def to_internal_value(self, data: Any) -> datetime:
        """The instant."""
        return self.checked(times.instant, data)


def sentence(error: Any) -> str:
    """The errors of a field in one line; those of an inner object with its fields' names."""
    if not isinstance(error, Mapping):
        return " ".join(map(str, error))
    return " ".join(
        sentence(inner) if name == WHOLE_OBJECT else f"{name}: {sentence(inner)}"
        for name, inner in error.items()
    )


def _repeats(entries: list[Any]) -> bool:
    try:
        return len(set(entries)) < len(entries)
    except TypeError:  # of objects
        return any(entry in entries[:position] for position, entry in enumerate(entries))


def _nullable(schema: Schema, shown: bool) -> Schema:
    if shown and "title" in schema:
        return {"oneOf": [schema, {"type": "null"}]}
    if shown:
        return schema | {"type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}
