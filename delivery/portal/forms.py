"""Convert webhook forms into the arguments of registry/consumers."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from django import forms
from django.utils.safestring import SafeString

from channels_app.conf import conf
from channels_app.core import backoff, names, networks
from channels_app.core.values import MASK
from channels_app.form_fields import RetryOverridesField, in_words
from channels_app.models import Channel, Consumer, EventType
from channels_app.registry import consumers
from channels_app.serializers.api_keys import DEFAULT_OVERLAP_S
from channels_app.serializers.settings import MAX_ATTEMPTS
from delivery.serializers.requests import HIGHEST_RATE, LOWEST_RATE

DEFAULT, CUSTOM = "", "custom"
CALLS = ("url", "headers")
"""Settings of push consumers, which pull consumers lack."""
MAX_REASON_LENGTH = 500


class WebhookForm(forms.Form):
    """An existing webhook's settings."""

    places: ClassVar[Mapping[str, str]] = {
        "rate_limit": "rate_per_second",
        "event_types": "patterns",
    }
    """Fields with another name in the service."""

    url = forms.CharField(
        label="Address",
        max_length=2048,
        help_text="Where we send each message as a POST request. https is best.",
        widget=forms.TextInput(
            attrs={
                "placeholder": "https://example.com/hooks",
                "inputmode": "url",
                "spellcheck": "false",
                "data-check": "",
            }
        ),
    )
    types = forms.MultipleChoiceField(
        label="Event types",
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    patterns = forms.CharField(
        label="More event types",
        required=False,
        max_length=4000,
        help_text=SafeString(
            "Names or patterns like <code>order.*</code> (all below order), separated by spaces. "
            "If you choose nothing above and here, you get every message."
        ),
        widget=forms.TextInput(attrs={"placeholder": "order.* stock.low"}),
    )
    retry = forms.ChoiceField(
        label="When an attempt fails", required=False, widget=forms.RadioSelect
    )
    max_attempts = forms.IntegerField(
        label="Attempts",
        required=False,
        min_value=1,
        max_value=MAX_ATTEMPTS,
        help_text="Failures until a message becomes a dead letter.",
    )
    retry_overrides = RetryOverridesField(
        label="The first entry that matches a message's event type applies",
        help_text=SafeString(
            "When an attempt fails: a plan of those above, such as <code>fast</code>, or seconds "
            "to wait after each failure, such as <code>1, 10, 60</code>. Empty fields inherit "
            "the settings above. Emptying an entry removes it."
        ),
    )
    rate_per_second = forms.FloatField(
        label="Requests per second",
        required=False,
        min_value=0.001,
        max_value=100_000,
        help_text="Maximum. Empty: as fast as you respond.",
    )
    headers = forms.CharField(
        label="Headers of your own",
        required=False,
        max_length=20_000,
        help_text=SafeString(
            "One per line, like <code>Authorization: Bearer abc</code>. They are stored encrypted "
            f"and shown as <code>{MASK}</code>, which keeps a stored value."
        ),
        widget=forms.Textarea(attrs={"rows": 2, "spellcheck": "false"}),
    )
    lapsed_leases = forms.ChoiceField(
        label="When a worker's lease expires",
        required=False,
        choices=[
            ("free", "It does not count as an attempt: the worker may have died"),
            ("charged", "It counts as an attempt, as in Amazon SQS"),
        ],
        initial="free",
        widget=forms.RadioSelect,
        help_text="Only for a webhook that pulls its messages.",
    )
    dead_letter_channel = forms.ChoiceField(
        label="Publish dead letters on",
        required=False,
        help_text="Each dead letter is published there too, and stays a dead letter "
        "here. You can choose channels on which producers of the team publish.",
    )
    description = forms.CharField(
        label="Description",
        required=False,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 2}),
    )

    def __init__(
        self,
        channel: Channel,
        *args: Any,
        dead_letters: Collection[str] = (),
        stored: Any = None,
        **kwargs: Any,
    ) -> None:
        """``dead_letters`` are the channels to choose from, ``stored`` is a policy."""
        super().__init__(*args, **kwargs)
        choices = [name for name in dead_letters if name != channel.slug]
        dead: Any = self.fields["dead_letter_channel"]
        dead.choices = [("", "No channel"), *((name, name) for name in choices)]
        if not choices:
            del self.fields["dead_letter_channel"]
        event_types = EventType.objects.filter(channel=channel).order_by("deprecated", "name")
        self._types = list(event_types.values_list("name", flat=True))
        types: Any = self.fields["types"]
        types.choices = [(name, name) for name in self._types]
        if not self._types:
            del self.fields["types"]
            self.fields["patterns"].label = "Event types"
            self.fields["patterns"].help_text = SafeString(
                "Names or patterns like <code>order.*</code> (all below order), separated by "
                "spaces. If it is empty, you get every message."
            )
        retry: Any = self.fields["retry"]
        retry.choices = _policies(stored)
        attempts = conf().max_attempts
        self.fields["max_attempts"].widget.attrs["placeholder"] = f"{attempts} unless you say"

    def clean_url(self) -> str:
        """Check that the URL may be called; the service checks it again."""
        url: str = self.cleaned_data["url"].strip()
        if fault := fault_of(url):
            raise forms.ValidationError(fault)
        return url

    def clean_headers(self) -> dict[str, str]:
        """Parse lines of ``Name: value`` into a mapping."""
        headers: dict[str, str] = {}
        for line in self.cleaned_data["headers"].splitlines():
            name, colon, value = line.partition(":")
            if not line.strip():
                continue
            if not colon:
                raise forms.ValidationError(f"There is no colon in {line[:60]!r}.")
            if name.strip() in headers:
                raise forms.ValidationError(f"{name.strip()} occurs twice.")
            headers[name.strip()] = value.strip()
        return headers

    def clean_patterns(self) -> list[str]:
        """Check names and patterns."""
        patterns: list[str] = self.cleaned_data["patterns"].replace(",", " ").split()
        for pattern in patterns:
            if fault := names.validate_pattern(pattern):
                raise forms.ValidationError(f"{pattern[:80]}: {fault}")
        return patterns

    def only_what_is_called_needs(self) -> None:
        """Remove fields of pull consumers."""
        del self.fields["lapsed_leases"]

    def only_what_pulls_need(self) -> None:
        """Remove fields of push consumers."""
        self.fields["lapsed_leases"].help_text = ""
        del self.fields["url"], self.fields["rate_per_second"], self.fields["headers"]

    def values(self) -> dict[str, Any]:
        """Return the values as a registration takes them."""
        given = self.cleaned_data
        rate = given.get("rate_per_second")
        types = dict.fromkeys([*given.get("types", ()), *given["patterns"]])
        values = {
            "url": given.get("url"),
            "event_types": list(types),
            "headers": given.get("headers"),
            "description": given["description"].replace("\r\n", "\n"),
            "max_attempts": given["max_attempts"],
            "retry_overrides": given["retry_overrides"],
            "rate_limit": {"per_second": rate, "burst": max(1, int(rate))} if rate else None,
        }
        if given.get("lapsed_leases"):
            values["lapsed_leases"] = given["lapsed_leases"]
        if "dead_letter_channel" in given:
            values["dead_letter_channel"] = given["dead_letter_channel"] or None
        if given["retry"] != CUSTOM:
            values["retry"] = given["retry"] or None
        return {
            name: value for name, value in values.items() if value is not None or name not in CALLS
        }


class RegisterForm(WebhookForm):
    """The settings of a new webhook."""

    client_id = forms.CharField(
        label="Name",
        max_length=names.MAX_SLUG_LENGTH,
        help_text=SafeString(
            "A name of your choice, unique on the channel: lower-case letters, digits, "
            "<code>.</code> <code>_</code> <code>-</code>"
        ),
        widget=forms.TextInput(attrs={"placeholder": "billing", "spellcheck": "false"}),
    )
    mode = forms.ChoiceField(
        label="How it gets its messages",
        required=False,
        choices=[
            ("push", "We call it: a POST request as soon as there is a message"),
            ("pull", "It pulls them: your workers receive, also behind a firewall"),
        ],
        initial="push",
        widget=forms.RadioSelect,
    )
    field_order = ("client_id", "mode", "url")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["url"].required = False

    def clean_url(self) -> str:
        """Require a URL for push consumers, and none for pull consumers."""
        if self.cleaned_data.get("mode") == "pull":
            return ""
        if not self.cleaned_data["url"].strip():
            raise forms.ValidationError("An address is required, unless it pulls its messages.")
        return super().clean_url()

    def values(self) -> dict[str, Any]:
        """Return the values with the mode."""
        return super().values() | {"mode": self.cleaned_data["mode"] or "push"}

    def clean_client_id(self) -> str:
        """Check that the name can be part of a URL."""
        name: str = self.cleaned_data["client_id"].strip()
        if fault := names.slug(name):
            raise forms.ValidationError(fault)
        return name


class SecretRotationForm(forms.Form):
    """A new secret."""

    overlap_s = forms.TypedChoiceField(
        label="The old secret keeps signing",
        coerce=int,
        choices=[
            (DEFAULT_OVERLAP_S, "for a day"),
            (3600, "for an hour"),
            (7 * 86_400, "for a week"),
            (0, "no longer: it has leaked"),
        ],
        initial=DEFAULT_OVERLAP_S,
    )
    reason = forms.CharField(label="Reason", required=False, max_length=MAX_REASON_LENGTH)


class SwitchForm(forms.Form):
    """The reason to pause or retire a webhook."""

    reason = forms.CharField(required=False, max_length=consumers.MAX_REASON_LENGTH)


class ReplayForm(forms.Form):
    """Options of replaying dead letters."""

    rate_per_second = forms.FloatField(
        label="Messages per second",
        required=False,
        min_value=LOWEST_RATE,
        max_value=HIGHEST_RATE,
        help_text="Empty: all at once, within your webhook's own limits.",
    )
    reason = forms.CharField(
        label="Reason",
        max_length=MAX_REASON_LENGTH,
        help_text="For the audit log.",
        widget=forms.TextInput(attrs={"placeholder": "the endpoint was down"}),
    )


def fault_of(url: str) -> str | None:
    """Return what is wrong with a URL as a sentence; None if it is valid."""
    if not url:
        return "Type an address first."
    return networks.check_url(
        url[: networks.MAX_URL_LENGTH + 1],
        allowed=conf().allowed_networks,
        https_only=conf().https_only,
    )


def initial(webhook: Consumer) -> dict[str, Any]:
    """Return a webhook's settings for the form."""
    type_names = set(
        EventType.objects.filter(channel=webhook.channel).values_list("name", flat=True)
    )
    headers = consumers.static_headers(webhook) or {}
    retry = webhook.retry
    return {
        "url": webhook.url,
        "types": [name for name in webhook.event_types if name in type_names],
        "patterns": " ".join(name for name in webhook.event_types if name not in type_names),
        "retry": retry if isinstance(retry, str) else CUSTOM if retry else DEFAULT,
        "max_attempts": webhook.max_attempts,
        "retry_overrides": webhook.retry_overrides,
        "rate_per_second": webhook.rate_per_second,
        "headers": "\n".join(f"{name}: {MASK}" for name in headers),
        "lapsed_leases": webhook.lapsed_leases,
        "dead_letter_channel": webhook.dead_letter_channel and webhook.dead_letter_channel.slug,
        "description": webhook.description,
    }


def _policies(stored: Any) -> list[tuple[str, str]]:
    choices = [(DEFAULT, "As the channel's owner chose")]
    if stored is not None and not isinstance(stored, str):
        choices.append((CUSTOM, f"As it is: {stored}"))
    return [*choices, *((name, f"{name}: {in_words(name)}") for name in backoff.PRESETS)]
