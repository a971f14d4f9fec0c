"""Define what bodies of requests and responses have in common."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from channels_app.conf import conf
from channels_app.core import ids
from channels_app.core.errors import FieldError, Invalid
from channels_app.serializers.base import StrictSerializer
from channels_app.serializers.fields import Schema, Strict, Text

UNSET: Mapping[str, Any] = {"allow_null": True, "required": False}
"""Options of a field that may be left out; the documentation mentions null."""


class RequestSerializer(StrictSerializer):
    """The body of a request; clients write null for a field that is not set."""

    refusing_null: ClassVar[Collection[str]] = ()
    """Fields for which null is an error all the same."""

    def to_internal_value(self, data: Any) -> Any:
        """Check the fields that were set."""
        if isinstance(data, Mapping):
            kept = self.refusing_null
            data = {
                name: value for name, value in data.items() if value is not None or name in kept
            }
        return super().to_internal_value(data)

    def given(self, query: Mapping[str, str]) -> dict[str, str]:
        """Return its parameters in the query of a page, without empty ones."""
        texts = ((name, query.get(name, "").strip()) for name in self._accepted_fields)
        return {name: text for name, text in texts if text}

    def usable(self, query: Mapping[str, str]) -> tuple[dict[str, Any], list[FieldError]]:
        """Return the values of its valid parameters, and the errors of the others."""
        given = self.given(query)
        try:
            return self.read(given), []
        except Invalid as bad:
            wrong = {fault.field for fault in bad.faults}
            values, more = self.usable({name: given[name] for name in given.keys() - wrong})
            return values, [*bad.faults, *more]


class Reason(Text):
    """Why a person or program does it."""

    def __init__(self) -> None:
        super().__init__(500, lines=True, help_text="For the audit log.", **UNSET)


class PublicId(Strict):
    """The public id of a row of this kind (core/ids.py); the database has its number."""

    def __init__(self, prefix: str, **options: Any) -> None:
        super().__init__(**options)
        self._prefix = prefix
        self.value_schema = public_id(prefix)
        noun = "message" if prefix == ids.MESSAGE else "delivery"  # nothing takes other ids
        self.error_messages["invalid"] = f"Send the id of a {noun}, like {prefix}_0cz9k3v8m0001."

    def to_internal_value(self, data: Any) -> int:
        """Its number."""
        number = ids.from_public(self._prefix, data) if isinstance(data, str) else None
        return int(self.fail("invalid")) if number is None else number

    def to_representation(self, value: int) -> str:
        """The public id."""
        return ids.to_public(self._prefix, value)


class AddressField(Strict):
    """A URL of the API; ``path`` returns its path for a row."""

    value_schema = {"type": "string", "format": "uri"}

    def __init__(self, path: Callable[[Any], str], **options: Any) -> None:
        super().__init__(source="*", **options)
        self._path = path

    def to_representation(self, value: Any) -> str:
        """The absolute URL."""
        return url(self._path(value))


def public_id(prefix: str) -> Schema:
    """The schema of a public id."""
    return {"type": "string", "pattern": f"^{prefix}_[0-7][0-9a-hjkmnp-tv-z]{{12}}$"}


def url(path: str) -> str:
    """Return the absolute URL of an API path."""
    return f"{conf().public_url}/api/v1/{path}"
