"""Describe a producer and its limits."""

from typing import Any

from rest_framework.serializers import ValidationError

from channels_app.models import Team
from channels_app.serializers.base import ResourceSerializer, StrictSerializer
from channels_app.serializers.fields import KEPT, Description, Flag, RelatedSlug, Slug, Whole
from channels_app.serializers.settings import RateLimitSerializer


def _default_priority() -> Whole:
    return Whole(0, 9, default=4, help_text="Priority of messages sent without one.")


class ProducerSerializer(ResourceSerializer):
    """A producer."""

    slug = Slug(read_only=True)
    description = Description()
    team = RelatedSlug(
        "team",
        queryset=Team.objects,
        allow_null=True,
        help_text="Its owner. A PUT without it keeps the value.",
        **KEPT,
    )
    default_priority = _default_priority()
    max_priority = Whole(
        0, 9, default=9, help_text="Messages with a higher priority are refused (422)."
    )
    rate_limit = RateLimitSerializer(help_text="Messages per second; 429 above it.")
    disabled = Flag(help_text="Refuse its keys. A PUT without it keeps the value.", **KEPT)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """The default must be a priority that is accepted."""
        if self.merged(attrs, "default_priority") > self.merged(attrs, "max_priority"):
            fault = "The default must not be above max_priority."
            raise ValidationError({"default_priority": fault})
        return attrs


class OwnProducerSerializer(StrictSerializer):
    """What a team may set of its producer; operators set the limits."""

    description = Description()
    default_priority = _default_priority()
