"""Serve channels: operators create and change them, keys that may use them can read them."""

from typing import Any

from django.db.models import Q, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api import cursor, etags, openapi
from channels_app.api.authentication import Caller
from channels_app.api.base import ApiView, json_object, stamps
from channels_app.conf import conf
from channels_app.core import fields, keys
from channels_app.core.errors import NotFound
from channels_app.core.rate_limits import within
from channels_app.models import Channel
from channels_app.registry import channels
from channels_app.registry.channels import FIELDS

SETTINGS = openapi.component("ChannelSettings", fields.object_schema(FIELDS))
CHANGES = openapi.component("ChannelChanges", fields.object_schema(FIELDS, partial=True))
EFFECTIVE = openapi.component(
    "EffectiveLimits",
    openapi.record(
        max_body_bytes=openapi.WHOLE,
        idempotency_window_s=openapi.WHOLE,
        max_future_days=openapi.WHOLE,
        max_waiting_messages=openapi.MAYBE_WHOLE,
        max_waiting_bytes=openapi.MAYBE_WHOLE,
        retention_days=openapi.WHOLE,
        dead_retention_days=openapi.WHOLE,
    ),
)
CHANNEL = openapi.component(
    "Channel",
    openapi.resource(fields.object_schema(FIELDS), slug=fields.slug.schema, effective=EFFECTIVE),
)
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
        return Response(page.answer([_visible(self.caller)], representation))


class ChannelView(ApiView):
    """One channel."""

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
        found = Channel.objects.filter(slug=channel).first()
        if found is None:
            raise NotFound("unknown_channel", f"There is no channel {channel}.")
        return etags.fresh(request, representation(found), found.version)

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
        done = channels.put(
            channel,
            json_object(request, optional=True),
            actor=self.caller.actor,
            condition=etags.precondition_of(request),
        )
        return etags.registered(done, representation(done.row), f"channels/{channel}")

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
        done = channels.patch(
            channel,
            json_object(request),
            actor=self.caller.actor,
            condition=etags.precondition_of(request),
        )
        return etags.registered(done, representation(done.row))


def representation(channel: Channel) -> dict[str, Any]:
    """The channel as the API shows it."""
    defaults = conf()
    quota = channel.quota(defaults.channel_quota)
    effective = {
        "max_body_bytes": within(channel.max_body_bytes, defaults.max_body_bytes),
        "idempotency_window_s": channel.idempotency_window_s or defaults.idempotency_window_s,
        "max_future_days": within(channel.max_future_days, defaults.max_future_days),
        "max_waiting_messages": quota.messages or None,
        "max_waiting_bytes": quota.bytes or None,
        "retention_days": channel.retention_days or defaults.retention_days,
        "dead_retention_days": channel.dead_retention_days or defaults.dead_retention_days,
    }
    return {
        "slug": channel.slug,
        **channels.describe(channel),
        "effective": effective,
        **stamps(channel),
    }


def _visible(caller: Caller) -> QuerySet[Channel]:
    named = caller.key.channels
    if "admin" in caller.key.scopes:
        return Channel.objects.all()
    if named:
        return Channel.objects.filter(slug__in=named)
    if caller.key.producer is None and caller.key.team_id is not None:
        return Channel.objects.filter(Q(exposure=Channel.Exposure.EXTERNAL))
    return Channel.objects.all()
