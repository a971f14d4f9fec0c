"""Define the form fields that the console and the portal share."""

import json
import re
from collections.abc import Mapping
from typing import Any

from django import forms
from django.template import loader
from django.utils.safestring import SafeString

from channels_app.conf import conf
from channels_app.core import backoff, consumer_config
from channels_app.serializers.consumers import RetryOverrides

_NUMBERS = re.compile(r"[0-9.,\s]+")
_PARTS = ("event_types", "retry", "max_attempts")


def policy_of(text: str) -> Any:
    """Parse a retry policy that a person typed: a preset's name, seconds as ``1, 10, 60``, or JSON.

    Returns None for empty text. Raises ValueError for invalid JSON; a serializer validates the
    policy itself.
    """
    text = text.strip()
    if not text:
        return None
    if _NUMBERS.fullmatch(text):
        text = f"[{', '.join(text.replace(',', ' ').split())}]"
    if text[0] not in "[{":
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError("This is no JSON.") from None


def policy_text(policy: Any) -> str:
    """A retry policy as text that `policy_of` parses."""
    if policy is None:
        return ""
    return policy if isinstance(policy, str) else json.dumps(policy)


def in_words(preset: str) -> str:
    """A preset as text: number of attempts, and the time that they span."""
    policy, attempts = backoff.resolve_rule(preset, conf().max_attempts)
    if attempts == 1:
        return "never try again"
    first, whole = backoff.total(policy, 2), backoff.total(policy, attempts)
    return f"first after {_span(first)}, {attempts} attempts in about {_span(whole)}"


class RetryOverridesWidget(forms.Widget):
    """A row for each override, and empty ones for more. Clearing a row removes the override."""

    use_fieldset = True
    blank_rows = 2

    def __init__(self, *, input_class: str = "", attrs: dict[str, Any] | None = None) -> None:
        super().__init__(attrs)
        self._input_class = input_class

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        """Render the rows; ``value`` is a list of them, as the field prepares it."""
        blank = dict.fromkeys(_PARTS, "")
        rows = list(value or ())
        rows += [blank] * min(self.blank_rows, max(0, consumer_config.MAX_OVERRIDES - len(rows)))
        attrs = {**self.attrs, **(attrs or {})}
        for foreign in ("required", "aria-invalid"):
            attrs.pop(foreign, None)  # belongs on an input, not on the group
        context = {
            "name": name,
            "id": attrs.pop("id", name),
            "rows": rows,
            "attrs": attrs,
            "input_class": self._input_class,
            "presets": [(preset, in_words(preset)) for preset in backoff.PRESETS],
        }
        return SafeString(loader.render_to_string("channels_app/retry_overrides.html", context))

    def value_from_datadict(
        self, data: Mapping[str, Any], files: Any, name: str
    ) -> list[dict[str, str]]:
        """The rows that are not empty; errors number the entries in this list."""
        columns = [
            data.getlist(f"{name}-{part}") if hasattr(data, "getlist") else () for part in _PARTS
        ]
        rows = [dict(zip(_PARTS, row, strict=True)) for row in zip(*columns, strict=False)]
        return [row for row in rows if any(cell.strip() for cell in row.values())]

    def value_omitted_from_data(self, data: Mapping[str, Any], files: Any, name: str) -> bool:
        """Whether the form was sent without rows."""
        return f"{name}-{_PARTS[0]}" not in data

    def id_for_label(self, id_: str) -> str:
        """Return '': each input of a row has a label of its own."""
        return ""


class RetryOverridesField(forms.Field):
    """A consumer's ``retry_overrides`` as rows of a form."""

    widget = RetryOverridesWidget

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, **kwargs)

    def prepare_value(self, value: Any) -> list[dict[str, str]]:
        """Stored overrides as text; rows from a submitted form stay as they are."""
        return [
            {
                "event_types": _text(row["event_types"]),
                "retry": policy_text(row["retry"]),
                "max_attempts": _text(row["max_attempts"]),
            }
            for row in value or ()
        ]

    def to_python(self, value: Any) -> list[dict[str, Any]]:
        """The overrides, in the form that a registration takes."""
        entries = []
        for number, row in enumerate(value or (), 1):
            try:
                entries.append(_entry(row))
            except ValueError as fault:
                raise forms.ValidationError(f"Entry {number}: {fault}") from None
        return entries

    def validate(self, value: Any) -> None:
        """Reject what the registering step would reject."""
        try:
            RetryOverrides().take(value)
        except ValueError as fault:
            raise forms.ValidationError(str(fault)) from None

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Whether the rows differ from the initial ones."""
        return self.prepare_value(initial) != self.prepare_value(data)


def _entry(row: Mapping[str, str]) -> dict[str, Any]:
    attempts = row["max_attempts"].strip()
    if attempts and not (attempts.isascii() and attempts.isdecimal() and len(attempts) < 10):
        raise ValueError("max_attempts: A whole number is needed.")
    return {
        "event_types": row["event_types"].replace(",", " ").split(),
        "retry": policy_of(row["retry"]),
        "max_attempts": int(attempts) if attempts else None,
    }


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(value)
    return "" if value is None else str(value)


def _span(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
