"""Define forms that write through the services of registry, so that console and API agree."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django import forms
from django.forms.fields import InvalidJSONInput
from unfold.widgets import (
    INPUT_CLASSES,
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from channels_app.access.principal import Principal
from channels_app.core import backoff
from channels_app.core.errors import BrokerError, FieldError
from channels_app.core.http import ALWAYS, Precondition
from channels_app.form_fields import (
    RetryOverridesField,
    RetryOverridesWidget,
    policy_of,
    policy_text,
)
from channels_app.models import Channel, Consumer, EventType, Producer
from channels_app.registry import channels, consumers, event_types, producers
from channels_app.registry.consumers import MAX_REASON_LENGTH
from channels_app.registry.resource import Resource, WriteResult
from channels_app.serializers.base import ResourceSerializer
from channels_app.serializers.channels import ChannelSerializer
from channels_app.serializers.consumers import ConsumerSerializer
from channels_app.serializers.event_types import EventTypeSerializer
from channels_app.serializers.producers import ProducerSerializer

LINE = 60
"""Maximum length of JSON that a form shows on a single line, in characters."""
OPTIONAL_NUMBERS = {"max_pumps": 1}
"""A consumer's numbers that have a default, which an empty form field stands for."""
PLACES = {"rate_limit": "rate_per_second", "channel": "slug", "producer": "slug"}
"""Form fields whose names differ from those of the services."""


class LinesField(forms.CharField):
    """A list, one entry per line."""

    def __init__(self, *, rows: int = 3, **kwargs: Any) -> None:
        widget = UnfoldAdminTextareaWidget(attrs={"rows": rows})
        super().__init__(required=False, widget=widget, **kwargs)

    def prepare_value(self, value: Any) -> Any:
        """The entries as lines."""
        return "\n".join(value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        """The lines as entries, without empty ones."""
        return [line.strip() for line in (value or "").splitlines() if line.strip()]


class Policy(forms.CharField):
    """A retry policy: the name of a preset, or JSON."""

    def __init__(self, **kwargs: Any) -> None:
        presets = ", ".join(backoff.PRESETS)
        text = f'{presets}; or delays in seconds as [5, 60, 3600], or {{"base": 5, "cap": 3600}}.'
        widget = UnfoldAdminTextInputWidget()
        super().__init__(required=False, help_text=text, widget=widget, **kwargs)

    def prepare_value(self, value: Any) -> str:
        """A preset's name; anything else as JSON."""
        return policy_text(value)

    def to_python(self, value: Any) -> Any:
        """None for the default; a word is a preset's name."""
        try:
            return policy_of(value or "")
        except ValueError as fault:
            raise forms.ValidationError(str(fault)) from None


class OptionalJson(forms.JSONField):
    """JSON; empty for None."""

    def prepare_value(self, value: Any) -> Any:
        """The JSON text; long values are indented."""
        if value is None:
            return ""
        text: str = super().prepare_value(value)
        if len(text) <= LINE or isinstance(value, InvalidJSONInput):
            return text
        return json.dumps(value, ensure_ascii=False, indent=2)


class ShowsFieldErrors(forms.ModelForm):  # type: ignore[type-arg]  # generic in the stubs only
    """A form that can show the errors of a service."""

    refused: ClassVar[BrokerError | None] = None

    def clean(self) -> dict[str, Any] | None:
        """Add the service's errors to their fields."""
        cleaned = super().clean()
        if self.refused is not None:
            self.blame(self.refused.faults or [FieldError("", self.refused.detail)])
        return cleaned

    def blame(self, faults: Sequence[FieldError]) -> None:
        """Add errors to their fields, or to the form if it has no such field."""
        for fault in faults:
            place = fault.field if fault.field in self.fields else PLACES.get(fault.field)
            self.add_error(place if place in self.fields else None, fault.detail)


class ResourceForm(ShowsFieldErrors):
    """A form whose values a service reads, validates and stores; it saves nothing itself."""

    serializer: ClassVar[type[ResourceSerializer]]
    seen = forms.IntegerField(required=False, widget=forms.HiddenInput)
    """The version that the page showed, so that changes made meanwhile are not overwritten."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, described in self.serializer().fields.items():
            if name in self.fields and not self.fields[name].help_text:
                # The meaning of an absent field in a request does not matter in a form.
                text = described.help_text or ""
                self.fields[name].help_text = text.partition(" PUT without")[0]
        if "rate_per_second" in self.fields:
            self.fields["rate_per_second"].help_text = "Maximum; empty: no limit."
            self.fields["rate_burst"].help_text = "Maximum at once."
        if "description" in self.fields:
            self.fields["description"].widget = UnfoldAdminTextareaWidget(attrs={"rows": 2})
        if self.instance.pk:
            self.initial["seen"] = self.instance.version

    def values(self) -> dict[str, Any]:
        """The form's values under the names of the service's fields."""
        settings = self.serializer.settings()
        values = {name: self.cleaned_data.get(name) for name in self.fields if name in settings}
        if "rate_per_second" in self.fields:
            limited = self.cleaned_data.get("rate_per_second")
            burst = self.cleaned_data.get("rate_burst") or 1
            values["rate_limit"] = {"per_second": limited, "burst": burst} if limited else None
        for name in ("team", "dead_letter_channel"):
            if (chosen := values.get(name)) is not None:
                values[name] = chosen.slug
        return values

    def clean(self) -> dict[str, Any] | None:
        """Add the errors that the service would find in single fields."""
        cleaned = super().clean()
        if not self.errors:
            checked = self.serializer(self.instance, data=self.values(), partial=True)
            self.blame(() if checked.is_valid() else checked.faults)
        return cleaned

    def condition(self) -> Precondition:
        """The version that the page showed must still be the current one."""
        seen = self.cleaned_data.get("seen")
        return Precondition(frozenset({seen}), must_exist=True) if seen is not None else ALWAYS

    def write(self, principal: Principal) -> WriteResult[Any]:
        """Pass the values to the service. Raises what it raises."""
        raise AssertionError("each form knows its step")


class ReasonedForm(ResourceForm):
    """A form with a switch that stops traffic, and a reason for the audit log."""

    reason = forms.CharField(
        max_length=MAX_REASON_LENGTH,
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="Why it is changed, for the audit log.",
    )
    resource: ClassVar[Resource[Any]]

    def write(self, principal: Principal) -> WriteResult[Any]:
        """Create or change the row."""
        step = self.resource.patch if self.instance.pk else self.resource.put
        return step(
            self.instance.slug,
            self.values(),
            principal=principal.because(self.cleaned_data["reason"]),
            condition=self.condition(),
        )


class ChannelForm(ReasonedForm):
    """A channel."""

    resource, serializer = channels.RESOURCE, ChannelSerializer
    content_types = LinesField(
        help_text="Media types that producers may send, one per line; none: any."
    )
    default_retry = Policy()

    class Meta:
        model = Channel
        exclude = ("pruned_to",)  # noqa: DJ006 - the admin names the fields


def _json(rows: int, text: str = "") -> OptionalJson:
    # The style sheet makes it grow with its contents.
    widget = UnfoldAdminTextareaWidget(attrs={"rows": rows, "class": "hs-mono hs-grows"})
    return OptionalJson(required=False, widget=widget, help_text=text)


class EventTypeForm(ResourceForm):
    """An event type of a channel."""

    serializer = EventTypeSerializer
    schema = _json(12, "JSON Schema that bodies of this type must satisfy.")
    example = _json(8)

    class Meta:
        model = EventType
        exclude = ()  # noqa: DJ006 - the admin names the fields

    def write(self, principal: Principal) -> WriteResult[EventType]:
        """Create or change it."""
        step = event_types.patch if self.instance.pk else event_types.put
        place = self.instance.channel.slug, self.instance.name
        return step(*place, self.values(), principal=principal, condition=self.condition())


class ProducerForm(ReasonedForm):
    """A producer."""

    resource, serializer = producers.RESOURCE, ProducerSerializer

    class Meta:
        model = Producer
        exclude = ()  # noqa: DJ006 - the admin names the fields


class ConsumerForm(ResourceForm):
    """A consumer of a channel."""

    serializer = ConsumerSerializer
    event_types = LinesField(
        help_text="Names and patterns such as order.*, one per line; none: all."
    )
    headers = _json(
        4,
        "Static headers as a JSON object. Stored encrypted; ******** keeps a stored value.",
    )
    retry = Policy()
    retry_overrides = RetryOverridesField(
        label="Retry overrides",
        widget=RetryOverridesWidget(input_class=" ".join(INPUT_CLASSES)),
        help_text="Other settings for some event types. The first entry whose names or patterns, "
        "such as order.*, match a message applies to it. Empty fields inherit the settings above. "
        "Emptying an entry removes it.",
    )
    ack = _json(
        4,
        "How it acknowledges. Empty: by its response. By a later callback from it or its provider: "
        '{"mode": "callback", "timeout_ms": 2000, "on_timeout": "proceed"}. By a delay after its '
        '2xx: {"mode": "timer", "delay_ms": 250}. ******** keeps a stored secret.',
    )
    signing = forms.MultipleChoiceField(
        required=False,
        choices=[("v1a", "Ed25519 (v1a)")],
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="In addition to HMAC-SHA256 (v1), which every consumer gets.",
    )

    class Meta:
        model = Consumer
        exclude = ("headers_sealed", "inbound_sealed")  # noqa: DJ006 - the admin names the fields
        help_texts: ClassVar[Mapping[str, str]] = {
            "team": "The team that manages it in the portal."
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in OPTIONAL_NUMBERS.keys() & self.fields.keys():
            self.fields[name].required = False
        if self.instance.pk:
            # Values are masked. None means that their encryption key is missing; then they stay
            # unchanged.
            self.initial["headers"] = consumers.describe(self.instance)["headers"]

    def values(self) -> dict[str, Any]:
        """The form's values under the names of the service's fields."""
        values = super().values()
        if "signing" in values:
            values["signing"] = ["v1", *values["signing"]]
        for name in OPTIONAL_NUMBERS.keys() & values.keys():
            if values[name] is None:
                values[name] = OPTIONAL_NUMBERS[name]
        if values.get("headers") is None:
            values.pop("headers", None)
        return values

    def validate_constraints(self) -> None:
        """Skip them: a retired consumer of that name is revived; ``clean`` rejects others."""

    def clean(self) -> dict[str, Any] | None:
        """Reject a new consumer with the name of one that is not retired."""
        cleaned = super().clean()
        named = {name: self.cleaned_data.get(name) for name in ("channel", "client_id")}
        taken = Consumer.objects.filter(**named).exclude(state=Consumer.State.RETIRED)
        if not self.instance.pk and all(named.values()) and taken.exists():
            self.add_error("client_id", "The channel has a consumer of that name already.")
        return cleaned

    def write(self, principal: Principal) -> WriteResult[Consumer]:
        """Create, revive or change it."""
        step = consumers.patch if self.instance.pk else consumers.put
        place = self.instance.channel.slug, self.instance.client_id
        return step(*place, self.values(), principal=principal, condition=self.condition())
