"""Forms of the portal: what people type, and what a step said against it."""

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from django import forms

from channels_app import clock
from channels_app.errors import BrokerError
from channels_app.models import Channel, Producer, Team
from channels_app.rules import grants, invitations, names, roles, times
from channels_app.steps import api_keys

T = TypeVar("T")
MEANING = {
    "viewer": "Viewer: sees everything, changes nothing",
    "editor": "Editor: also changes what the team owns",
    "owner": "Owner: also decides who belongs to the team",
}

DOES = {
    "publish": "send messages, and move or cancel them",
    "register": "register and change webhooks",
    "receive": "ask for messages, and compare what was received with what was sent",
    "read": "look at messages, deliveries and webhooks",
    "replay": "send again what failed",
}
KEY_DAYS = (30, 90, 365)
PRODUCER = "producer:"
ALL = "*"
"""Chosen instead of channels; none can be called so."""


def refuse(form: forms.Form, refused: BrokerError) -> None:
    """Put what a step refused to where it belongs; everything typed stays.

    ``form.places`` names fields that the step calls otherwise.
    """
    places: Mapping[str, str] = getattr(form, "places", {})
    faults = [(fault.field, fault.detail) for fault in refused.faults]
    for name, detail in faults or [(refused.field, refused.detail)]:
        place = places.get(name, name)
        form.add_error(place if place in form.fields else None, detail)


def tried(form: forms.Form, step: Callable[[], T]) -> T | None:
    """What a step made of a form; None when one of both refused, which then stands in the form."""
    if not form.is_valid():
        return None
    try:
        return step()
    except BrokerError as refused:
        refuse(form, refused)
    return None


def complaint(form: forms.Form) -> str:
    """Everything that was said against a form, where it is not shown again."""
    return " ".join(str(fault) for faults in form.errors.values() for fault in faults)


class InviteForm(forms.Form):
    """Who is to join, as what, and how long the link works."""

    email = forms.EmailField(
        label="E-mail address",
        required=False,
        max_length=254,
        help_text="The link is sent there if this broker sends mail. It works for whoever has it.",
    )
    role = forms.ChoiceField(
        choices=[(role, MEANING[role]) for role in roles.ROLES],
        initial="viewer",
        widget=forms.RadioSelect,
    )
    days = forms.TypedChoiceField(
        label="The link works for",
        choices=[(days, f"{days} day{'s' * (days > 1)}") for days in invitations.DAYS],
        initial=7,
        coerce=int,
    )


class RoleForm(forms.Form):
    """Another role for a member."""

    role = forms.ChoiceField(choices=[(role, role) for role in roles.ROLES])


class KeyForm(forms.Form):
    """A new key: whose it is, what it may do, where, and how long."""

    label = forms.CharField(
        label="Name", max_length=200, help_text="For people: what uses the key, and where."
    )
    owner = forms.ChoiceField(
        label="Key of",
        help_text="A producer publishes. The team itself registers, looks and repairs.",
    )
    scopes = forms.MultipleChoiceField(
        label="It may",
        choices=[
            (scope, f"{scope}: {DOES[scope]}")
            for scope in (*grants.PRODUCER_SCOPES, *grants.TEAM_SCOPES)
        ],
        widget=forms.CheckboxSelectMultiple,
        help_text="A producer's key may publish, no more; a key of the team may do the rest.",
    )
    channels = forms.MultipleChoiceField(
        widget=forms.CheckboxSelectMultiple(attrs={"class": "channels"}),
        error_messages={"required": "Choose channels, or all."},
        help_text="By name there are those that operators granted to one of the owners, for what "
        "stands behind them. For more ask an operator.",
    )
    days = forms.TypedChoiceField(
        label="It works for",
        choices=[(days, f"{days} days") for days in KEY_DAYS] + [("", "as long as nobody ends it")],
        initial=KEY_DAYS[-1],
        required=False,
        coerce=int,
        empty_value=None,
        help_text="At most as long as the keys that it has its channels from.",
    )
    sigv4 = forms.BooleanField(
        label="Also for SQS clients (AWS Signature V4)",
        required=False,
        help_text="With a key pair as AWS's libraries take it.",
    )

    def __init__(self, team: Team, *args: Any, **kwargs: Any) -> None:
        """With the team's producers to choose from, and the channels that there are to give."""
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
        """Some, or all; what a team's key may use unnamed and by name cannot be in one key."""
        chosen: list[str] = self.cleaned_data["channels"]
        if ALL in chosen and len(chosen) > 1:
            raise forms.ValidationError("Choose either all or some of them.")
        return chosen

    def producer(self) -> str | None:
        """The producer it is for; None for the team's own."""
        owner: str = self.cleaned_data["owner"]
        return owner.removeprefix(PRODUCER) if owner.startswith(PRODUCER) else None

    def values(self) -> dict[str, Any]:
        """As the step takes them."""
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


def _granted(team: Team) -> list[tuple[str, str]]:
    """The channels that keys of the team or its producers name, each with who may do what there."""
    held: dict[str, dict[str, set[str]]] = {}
    for key in api_keys.working(api_keys.keys_of(team.slug)).select_related("producer"):
        owner = f"producer {key.producer.slug}" if key.producer else "the team"
        offered = grants.PRODUCER_SCOPES if key.producer else grants.TEAM_SCOPES
        channels = key.channels
        if key.producer and not channels:
            # It may use every channel; those that are not open to teams are no team's to read of.
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


class RotateForm(forms.Form):
    """How long the old key works beside the new one."""

    overlap_s = forms.TypedChoiceField(
        label="The old key works on for",
        choices=[
            (0, "no time: it ends now"),
            (3600, "an hour"),
            (86_400, "a day"),
            (7 * 86_400, "a week"),
            (30 * 86_400, "30 days"),
        ],
        initial=86_400,
        coerce=int,
        help_text="Time to bring the new one to wherever the old one is used.",
    )


class TeamForm(forms.Form):
    """A new team."""

    name = forms.CharField(max_length=200, help_text="For people, such as Acme Accounting.")
    slug = forms.CharField(
        label="Short name",
        max_length=names.MAX_SLUG_LENGTH,
        help_text="For addresses and programs, such as acme; it stays as it is. Lower-case "
        "letters, digits, dots, underscores and hyphens.",
    )

    def values(self) -> dict[str, Any]:
        """As the step takes them."""
        return {"name": self.cleaned_data["name"], "slug": self.cleaned_data["slug"]}


class ProducerForm(forms.Form):
    """A producer, as far as its team decides."""

    description = forms.CharField(
        required=False,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="For people: which system it is, and who looks after it.",
    )
    default_priority = forms.IntegerField(
        label="Priority",
        min_value=0,
        max_value=9,
        initial=4,
        help_text="Of messages that name none: 0 is the lowest, 9 the highest.",
    )

    def values(self) -> dict[str, Any]:
        """As the step takes them."""
        return {
            "description": self.cleaned_data["description"].replace("\r\n", "\n"),
            "default_priority": self.cleaned_data["default_priority"],
        }


class NewProducerForm(ProducerForm):
    """A producer that is not there yet."""

    name = forms.CharField(max_length=names.MAX_SLUG_LENGTH)
    field_order = ("name", "description", "default_priority")

    def __init__(self, team: Team, *args: Any, **kwargs: Any) -> None:
        """With what stands before its name."""
        super().__init__(*args, **kwargs)
        self.fields["name"].help_text = (
            f"Such as till; programs know it as {team.slug}.till. Lower-case letters, digits, "
            "dots, underscores and hyphens; it stays as it is."
        )


def initial(producer: Producer) -> dict[str, Any]:
    """A producer as its form shows it."""
    return {
        "description": producer.description,
        "default_priority": producer.default_priority,
    }
