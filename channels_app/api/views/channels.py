"""Serve channels: operators create and change them, keys that may use them can read them."""

from django.db.models import Q, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.access.principal import Principal
from channels_app.api import base, cursor, openapi
from channels_app.api.base import ApiView, ResourceView, json_object
from channels_app.core import keys
from channels_app.core.errors import NotFound
from channels_app.models import Channel
from channels_app.registry import channels
from channels_app.serializers.channels import ChannelSerializer

SETTINGS, CHANGES, CHANNEL = openapi.described(ChannelSerializer)
READ = keys.SCOPES
"""A key with any scope may read channels."""


class ChannelListView(ApiView):
    """All channels that exist for the caller."""

    scopes = {"GET": READ}

    @openapi.operation(
        "listChannels",
        "List channels",
        tag="Channels",
        answers={200: openapi.page_of(CHANNEL)},
        errors=(422,),
        parameters=openapi.LIST,
    )
    def get(self, request: Request) -> Response:
        """List the channels that the key may use, newest first."""
        page = cursor.read(request)
        return Response(
            page.answer([_visible(self.principal)], ChannelSerializer().to_representation)
        )


class ChannelView(ResourceView):
    """One channel."""

    serializer = ChannelSerializer
    scopes = {"GET": READ, "PUT": ("admin",), "PATCH": ("admin",)}

    @openapi.operation(
        "getChannel",
        "Get a channel",
        tag="Channels",
        answers={200: CHANNEL, 304: None},
        errors=(404,),
        parameters=(openapi.CHANNEL, *openapi.READING),
    )
    def get(self, request: Request, channel: str) -> Response:
        """Return the channel's settings."""
        row = Channel.objects.filter(slug=channel).first()
        if row is None:
            raise NotFound("unknown_channel", f"There is no channel {channel}.")
        return base.fresh(request, ChannelSerializer(row).data, row.version)

    @openapi.operation(
        "putChannel",
        "Create or replace a channel",
        tag="Channels",
        body={openapi.JSON: SETTINGS},
        optional=True,
        answers={200: CHANNEL, 201: CHANNEL},
        errors=(400, 411, 412, 413, 415, 422),
        parameters=(openapi.CHANNEL, *openapi.CREATING),
    )
    def put(self, request: Request, channel: str) -> Response:
        """Create the channel or replace its settings. Repeating the call changes nothing."""
        return self.written(channels.put, channel, json_object(request, optional=True))

    @openapi.operation(
        "patchChannel",
        "Change settings of a channel",
        tag="Channels",
        body={openapi.JSON: CHANGES},
        answers={200: CHANNEL},
        errors=(400, 404, 411, 412, 413, 415, 422),
        parameters=(openapi.CHANNEL, *openapi.WRITING),
    )
    def patch(self, request: Request, channel: str) -> Response:
        """Change the given settings, including `paused`, and keep the others."""
        return self.written(channels.patch, channel, json_object(request))


def _visible(principal: Principal) -> QuerySet[Channel]:
    if principal.channels and not principal.is_operator:
        return Channel.objects.filter(slug__in=principal.channels)
    if principal.acts_for_team:
        return Channel.objects.filter(Q(exposure=Channel.Exposure.EXTERNAL))
    return Channel.objects.all()
