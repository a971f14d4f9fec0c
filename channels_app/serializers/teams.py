"""Describe a team and the quota of its messages."""

from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from django.core.validators import validate_email
from rest_framework.serializers import ValidationError

from channels_app.conf import conf
from channels_app.core import access
from channels_app.models import Team
from channels_app.serializers import settings
from channels_app.serializers.base import ResourceSerializer, StrictSerializer
from channels_app.serializers.fields import KEPT, OneOf, Slug, Text, Whole


class EffectiveQuotaSerializer(StrictSerializer):
    """What applies, with the installation's defaults filled in."""

    max_waiting_messages = Whole(allow_null=True)
    max_waiting_bytes = Whole(allow_null=True)

    def to_representation(self, instance: Team) -> dict[str, Any]:
        """Null: no limit."""
        quota = instance.quota(conf().team_quota)
        return {
            "max_waiting_messages": quota.messages or None,
            "max_waiting_bytes": quota.bytes or None,
        }


class TeamSerializer(ResourceSerializer):
    """A team. Its quota applies to the messages of its producers on all channels together.

    Null limits mean the installation's.
    """

    slug = Slug(read_only=True)
    name = Text(200, help_text="For people. Default of a new team: its slug.", **KEPT)
    max_waiting_messages = settings.max_waiting_messages()
    max_waiting_bytes = settings.max_waiting_bytes()
    effective = EffectiveQuotaSerializer(read_only=True, source="*")


class NewTeamSerializer(StrictSerializer):
    """A team that a person creates."""

    slug = Slug()
    name = Text(200)


def _address_fault(value: str) -> str | None:
    try:
        if value:
            validate_email(value)
    except DjangoValidationError:
        return "This is not an e-mail address."
    return None


class InvitationSerializer(StrictSerializer):
    """An invitation into a team."""

    role = OneOf(access.TEAM_RANKS, default="viewer")
    email = Text(254, check=_address_fault, default="")
    days = Whole(default=7)

    def validate_days(self, days: int) -> int:
        """One of a few lifetimes."""
        if days not in access.DAYS:
            raise ValidationError(f"Choose from {', '.join(map(str, access.DAYS))} days.")
        return days
