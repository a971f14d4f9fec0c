"""Define what our serializers have in common: unknown fields are errors, errors are Invalid."""

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, ClassVar, Self

from rest_framework import serializers
from rest_framework.fields import SkipField, empty
from rest_framework.serializers import ValidationError, as_serializer_error

from channels_app.core.errors import FieldError, Invalid
from channels_app.serializers.fields import WHOLE_OBJECT, Instant, Schema, Strict, Whole, sentence


class StrictSerializer(Strict, serializers.Serializer[Any]):
    """Takes an object with these fields and no others."""

    default_error_messages = {"invalid": "A JSON object is needed."}

    title: ClassVar[str]
    """Its name in the OpenAPI document; '' for none."""
    described: ClassVar[str] = ""
    """What the OpenAPI document says of the object."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "title" not in vars(cls):
            cls.title = cls.__name__.removesuffix("Serializer")

    def is_valid(self, *, raise_exception: bool = False) -> bool:
        """As in REST framework; but raises Invalid, with every error."""
        is_valid = super().is_valid()
        if raise_exception and not is_valid:
            raise Invalid.of(self.faults)
        return is_valid

    @property
    def faults(self) -> list[FieldError]:
        """The errors, in the order of the fields; those of an inner object belong to its field."""
        return _faults(self.errors)

    def read(self, data: Any) -> dict[str, Any]:
        """The checked values of one of many objects. Raises Invalid.

        To make a serializer takes a millisecond, ten times as long as to check an object.
        """
        try:
            return dict(self.run_validation(data))
        except ValidationError as error:
            raise Invalid.of(_faults(error.detail)) from None

    def run_validation(self, data: Any = empty) -> Any:
        """As in REST framework; but an inner object is whole even in a partial update."""
        is_inner = self.root is not self
        if is_inner and isinstance(data, Mapping) and getattr(self.root, "partial", False):
            return type(self)().run_validation(data)
        is_empty, data = self.validate_empty_values(data) if is_inner else (False, data)
        if is_empty:
            return data
        taken = self.to_internal_value(data)
        try:
            return self.validate(taken)
        except ValidationError as error:
            raise ValidationError(as_serializer_error(error)) from None

    def to_internal_value(self, data: Any) -> Any:
        """Check every field; in its own loop, because the framework's takes three times as long."""
        if not isinstance(data, Mapping):
            raise ValidationError({WHOLE_OBJECT: [self.error_messages["invalid"]]})
        fields = self._accepted_fields
        errors: dict[str, Any] = {}
        if unknown := [name for name in data if name not in fields]:
            fault = f"There is no such field; choose from {', '.join(fields)}."
            errors = {str(name)[:100]: [fault] for name in unknown}
        taken: dict[str, Any] = {}
        for name, field in fields.items():
            if name not in data and not (field.required or field.has_default):
                continue
            try:
                value = field.run_validation(data.get(name, empty))
                if (check := self._checks.get(name)) is not None:
                    value = check(value)
                self.set_value(taken, field.source_attrs, value)
            except ValidationError as error:
                errors[name] = error.detail
            except SkipField:
                pass
        if errors:
            raise ValidationError(errors)
        return taken

    @cached_property
    def _accepted_fields(self) -> dict[str, Any]:
        return {name: field for name, field in self.fields.items() if not field.read_only}

    @cached_property
    def _checks(self) -> dict[str, Any]:
        methods = {name: getattr(self, f"validate_{name}", None) for name in self._accepted_fields}
        return {name: check for name, check in methods.items() if check is not None}

    def merged(self, attrs: Mapping[str, Any], name: str) -> Any:
        """An attribute as it will be: as checked, else as the row has it."""
        return attrs[name] if name in attrs else getattr(self.instance, name)

    def schema_of_value(self, shown: bool) -> Schema:
        """A named object."""
        schema = self.shown_schema(shown) if shown else self.written_schema()
        return {"title": self.title, **schema} if self.title else schema

    def written_schema(self, *, partial: bool = False) -> Schema:
        """The JSON Schema of what it takes; ``partial`` as for a serializer."""
        properties = {}
        fields = self._accepted_fields
        for name, field in fields.items():
            properties[name] = schema = field.json_schema()
            if not partial and field.has_default:
                default = field.default() if callable(field.default) else field.default
                schema["default"] = None if default is None else field.to_representation(default)
        required = [name for name, field in fields.items() if field.required]
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        schema |= {"required": required} if required and not partial else {}
        return schema | ({"description": self.described} if self.described else {})

    def shown_schema(self, shown: bool = False) -> Schema:
        """The JSON Schema of what it shows: every field is there."""
        fields: Mapping[str, Any] = self.fields
        properties = {name: field.json_schema(shown=shown) for name, field in fields.items()}
        required = [name for name, field in fields.items() if not field.sometimes]
        schema = {"type": "object", "properties": properties, "required": required}
        return schema | ({"description": self.described} if self.described else {})


class ResponseSerializer(StrictSerializer):
    """Describes and shows what only the broker writes."""

    @classmethod
    def show(cls, value: Any) -> dict[str, Any]:
        """The object as the API writes it, for a serializer that needs no context."""
        return dict(cls._shared().to_representation(value))

    @classmethod
    @cache  # to make a serializer takes a millisecond
    def _shared(cls) -> Self:
        serializer = cls()
        fields: Mapping[str, Any] = serializer.fields
        lacking = [
            field for field in fields.values() if field.is_from_context and not field.sometimes
        ]
        assert not lacking, f"{cls.__name__} needs a context"
        return serializer


class ResourceSerializer(StrictSerializer):
    """Describes, checks and shows a configured row; its key comes from the URL.

    A replacing PUT fills in the defaults, a PATCH (``partial``) does not. A field that is neither
    required nor has a default keeps its value in both.
    """

    shown_last: ClassVar[tuple[str, ...]] = ("version", "created_at", "updated_at")

    version = Whole(read_only=True)
    created_at = Instant(read_only=True)
    updated_at = Instant(read_only=True)

    def get_fields(self) -> dict[str, Any]:
        """Its own fields come first."""
        fields = super().get_fields()
        last = {name: fields.pop(name) for name in self.shown_last}
        return fields | last

    @classmethod
    def settings(cls) -> list[str]:
        """The names of the fields that can be written."""
        return list(cls._written().fields)

    @classmethod
    def describe(cls, row: Any) -> dict[str, Any]:
        """The row's settings in the form in which they are written."""
        return cls._written().to_representation(row)

    @classmethod
    @cache  # copying the fields takes longer than showing a row
    def _written(cls) -> Self:
        written = cls()
        for name in [name for name, field in written.fields.items() if field.read_only]:
            del written.fields[name]
        return written


def _faults(errors: Any) -> list[FieldError]:
    return [
        FieldError("" if name == WHOLE_OBJECT else name, sentence(error))
        for name, error in errors.items()
    ]
