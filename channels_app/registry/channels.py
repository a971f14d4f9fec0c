"""Register a channel: create it, replace its settings or change some of them (S0-10)."""

from collections.abc import Mapping
from typing import Any

from channels_app.database import clock
from channels_app.models import Channel
from channels_app.registry.resource import Resource, assign
from channels_app.serializers.channels import ChannelSerializer


def _assign(channel: Channel, values: Mapping[str, Any]) -> None:
    was_internal = bool(channel.pk) and channel.exposure == "internal"
    assign(channel, values)
    if was_internal and channel.exposure == "external":
        channel.exposed_at = clock.now()


RESOURCE: Resource[Channel] = Resource("channel", Channel, ChannelSerializer, _assign)
put, patch = RESOURCE.put, RESOURCE.patch
