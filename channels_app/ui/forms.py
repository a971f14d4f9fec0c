"""Forms of the portal: what people type, and what a step said against it."""

from typing import Any

from django import forms

from channels_app.errors import BrokerError
from channels_app.rules import invitations, names, roles

MEANING = {
    "viewer": "Viewer: sees everything, changes nothing",
    "editor": "Editor: also changes what the team owns",
    "owner": "Owner: also decides who belongs to the team",
}


def refuse(form: forms.Form, refused: BrokerError) -> None:
    """Put what a step refused to where it belongs; everything typed stays."""
    faults = [(fault.field, fault.detail) for fault in refused.faults]
    for name, detail in faults or [(refused.field, refused.detail)]:
        form.add_error(name if name in form.fields else None, detail)


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


class TeamForm(forms.Form):
    """A new team."""

    name = forms.CharField(max_length=200, help_text="For people, such as Acme Accounting.")
    slug = forms.CharField(
        label="Short name",
        max_length=names.LONGEST_SLUG,
        help_text="For addresses and programs, such as acme; it stays as it is. Lower-case "
        "letters, digits, dots, underscores and hyphens.",
    )

    def values(self) -> dict[str, Any]:
        """As the step takes them."""
        return {"name": self.cleaned_data["name"], "slug": self.cleaned_data["slug"]}
