"""Define the forms of the portal, and add the errors of services to them."""

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from django import forms

from channels_app.core import access, names, times
from channels_app.core.errors import BrokerError
from channels_app.database import clock
from channels_app.models import Channel, Producer, Team
from channels_app.registry import api_keys

T = TypeVar("T")
MEANING = {
    "viewer": "Viewer: sees everything, changes nothing",
    "editor": "Editor: also changes what the team owns",
    "owner": "Owner: also decides who belongs to the team",
}

DOES = {
    "publish": "send messages, and move or cancel them",
    "register": "register and change webhooks",
    "receive": "receive messages, and compare sent with received ones",
    "read": "view messages, deliveries and webhooks",
    "replay": "replay and cancel deliveries",
}
KEY_DAYS = (30, 90, 365)
PRODUCER = "producer:"
ALL = "*"
"""Stands for all channels; no channel can have this name."""


def refuse(form: forms.Form, refused: BrokerError) -> None:
    """Add the errors of a service to the fields of the form, which keeps what was typed.

    ``form.places`` maps names of the service to fields of the form.
    """
    places: Mapping[str, str] = getattr(form, "places", {})
    faults = [(fault.field, fault.detail) for fault in refused.faults]
    for name, detail in faults or [(refused.field, refused.detail)]:
        place = places.get(name, name)
        form.add_error(place if place in form.fields else None, detail)


def tried(form: forms.Form, step: Callable[[], T]) -> T | None:
    """Run a service if the form is valid; None if either has errors, which the form then shows."""
    if not form.is_valid():
        return None
    try:
        return step()
    except BrokerError as refused:
        refuse(form, refused)
    return None


def complaint(form: forms.Form) -> str:
    """All errors of a form as one text, for when the form is not shown again."""
    return " ".join(str(fault) for faults in form.errors.values() for fault in faults)


class InviteForm(forms.Form):
    """Whom to invite, with which role, and how long the link is valid."""

    email = forms.EmailField(
        label="E-mail address",
        required=False,
        max_length=254,
        help_text="The link is sent there if this broker sends mail. Anyone who has it can use it.",
    )
    role = forms.ChoiceField(
        choices=[(role, MEANING[role]) for role in access.TEAM_RANKS],
        initial="viewer",
        widget=forms.RadioSelect,
    )
    days = forms.TypedChoiceField(
        label="The link works for",
        choices=[(days, f"{days} day{'s' * (days > 1)}") for days in access.DAYS],
        initial=7,
        coerce=int,
    )


class RoleForm(forms.Form):
    """Change a member's role."""

    role = forms.ChoiceField(choices=[(role, role) for role in access.TEAM_RANKS])


class KeyForm(forms.Form):
    """A new key: its owner, rights, channels and lifetime."""

    label = forms.CharField(
        label="Name", max_length=200, help_text="Which program uses the key, and where."
    )
    owner = forms.ChoiceField(
        label="Key of",
        help_text="A producer's key publishes. A team's key manages and uses webhooks.",
    )
    scopes = forms.MultipleChoiceField(
        label="Scopes",
        choices=[
            (scope, f"{scope}: {DOES[scope]}")
            for scope in (*access.PRODUCER_SCOPES, *access.TEAM_SCOPES)
        ],
        widget=forms.CheckboxSelectMultiple,
        help_text="A producer's key may only publish. A team's key may do everything else.",
    )
    channels = forms.MultipleChoiceField(
        widget=forms.CheckboxSelectMultiple(attrs={"class": "channels"}),
        error_messages={"required": "Choose channels, or all."},
        help_text="The channels listed by name were granted by operators to the owners shown, with "
        "these scopes. For more, ask an operator.",
    )
    days = forms.TypedChoiceField(
        label="It works for",
        choices=[(days, f"{days} days") for days in KEY_DAYS] + [("", "until it is revoked")],
        initial=KEY_DAYS[-1],
        required=False,
        coerce=int,
        empty_value=None,
        help_text="At most as long as the keys that grant its channels.",
    )
    sigv4 = forms.BooleanField(
        label="Also for SQS clients (AWS Signature V4)",
        required=False,
        help_text="Adds an access key pair for AWS SDKs.",
    )

    def __init__(self, team: Team, *args: Any, **kwargs: Any) -> None:
        """Offer the team's producers and the channels that the team may grant."""
        super().__init__(*args, **kwargs)
        self._team = team
        slugs = team.producers.order_by("slug").values_list("slug", flat=True)
        choices = [(f"{PRODUCER}{slug}", f"producer {slug}") for slug in slugs]
        owner = self.fields["owner"]
        assert isinstance(owner, forms.ChoiceField)
        owner.choices = [*choices, ("team", f"the team {team.name}")]
        channels = self.fields["channels"]
        assert isinstance(channels, forms.MultipleChoiceField)
        whole = "all that the owner may use (the team itself: those open to every team)"
        channels.choices = [(ALL, whole), *_granted(team)]
        self.initial.setdefault("scopes", ["publish"] if choices else ["read"])

    def clean_channels(self) -> list[str]:
        """Either some channels or all: a key that lists channels reaches only those."""
        chosen: list[str] = self.cleaned_data["channels"]
        if ALL in chosen and len(chosen) > 1:
            raise forms.ValidationError("Choose either all or some of them.")
        return chosen

    def producer(self) -> str | None:
        """The producer that gets the key; None for a key of the team."""
        owner: str = self.cleaned_data["owner"]
        return owner.removeprefix(PRODUCER) if owner.startswith(PRODUCER) else None

    def values(self) -> dict[str, Any]:
        """The values in the form that the service takes."""
        days, channels = self.cleaned_data["days"], self.cleaned_data["channels"]
        scopes = self.cleaned_data["scopes"]
        is_all = ALL in channels
        if is_all:
            channels = api_keys.every_channel(self._team.slug, self.producer(), scopes)
        ends = clock.now() + timedelta(days=days) if days else None
        return {
            "label": self.cleaned_data["label"],
            "scopes": scopes,
            "channels": channels,
            "all_channels": is_all and not channels and self.producer() is not None,
            "expires_at": times.text(ends) if ends else None,
            "sigv4": self.cleaned_data["sigv4"],
        }


class KeyRotationForm(forms.Form):
    """For how long the old key keeps working."""

    overlap_s = forms.TypedChoiceField(
        label="The old key keeps working for",
        choices=[
            (0, "no time: it ends now"),
            (3600, "an hour"),
            (86_400, "a day"),
            (7 * 86_400, "a week"),
            (30 * 86_400, "30 days"),
        ],
        initial=86_400,
        coerce=int,
        help_text="Time to replace the old key wherever it is used.",
    )


class TeamForm(forms.Form):
    """A new team."""

    name = forms.CharField(max_length=200, help_text="Display name, such as Acme Accounting.")
    slug = forms.CharField(
        label="Short name",
        max_length=names.MAX_SLUG_LENGTH,
        help_text="For URLs and programs, such as acme. It cannot be changed later. Lower-case "
        "letters, digits, dots, underscores and hyphens.",
    )

    def values(self) -> dict[str, Any]:
        """The values in the form that the service takes."""
        return {"name": self.cleaned_data["name"], "slug": self.cleaned_data["slug"]}


class ProducerForm(forms.Form):
    """The settings of a producer that its team may change."""

    description = forms.CharField(
        required=False,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="Which system it is, and who maintains it.",
    )
    default_priority = forms.IntegerField(
        label="Priority",
        min_value=0,
        max_value=9,
        initial=4,
        help_text="For messages without a priority: 0 is the lowest, 9 the highest.",
    )

    def values(self) -> dict[str, Any]:
        """The values in the form that the service takes."""
        return {
            "description": self.cleaned_data["description"].replace("\r\n", "\n"),
            "default_priority": self.cleaned_data["default_priority"],
        }


class NewProducerForm(ProducerForm):
    """A new producer."""

    name = forms.CharField(max_length=names.MAX_SLUG_LENGTH)
    field_order = ("name", "description", "default_priority")

    def __init__(self, team: Team, *args: Any, **kwargs: Any) -> None:
        """Explain the prefix of its name."""
        super().__init__(*args, **kwargs)
        self.fields["name"].help_text = (
            f"Such as till; the API uses {team.slug}.till. Lower-case letters, digits, dots, "
            "underscores and hyphens. It cannot be changed later."
        )


def initial(producer: Producer) -> dict[str, Any]:
    """The initial values of a producer's form."""
    return {
        "description": producer.description,
        "default_priority": producer.default_priority,
    }


def _granted(team: Team) -> list[tuple[str, str]]:
    """Channels in valid keys of the team and its producers, each with the rights on it."""
    held: dict[str, dict[str, set[str]]] = {}
    for key in api_keys.working(api_keys.keys_of(team.slug)).select_related("producer"):
        owner = f"producer {key.producer.slug}" if key.producer else "the team"
        offered = access.PRODUCER_SCOPES if key.producer else access.TEAM_SCOPES
        channels = key.channels
        if key.producer and not channels:
            # It may use every channel, but teams must not see those that are not external.
            channels = _open()
        for channel in channels:
            if scopes := set(offered).intersection(key.scopes):
                held.setdefault(channel, {}).setdefault(owner, set()).update(scopes)
    return [
        (channel, f"{channel}: {_owner_names(owners)}") for channel, owners in sorted(held.items())
    ]


def _open() -> list[str]:
    external = Channel.objects.filter(exposure=Channel.Exposure.EXTERNAL)
    return list(external.values_list("slug", flat=True))


def _owner_names(owners: Mapping[str, Collection[str]]) -> str:
    return "; ".join(
        f"{owner} may {', '.join(sorted(scopes))}" for owner, scopes in sorted(owners.items())
    )
