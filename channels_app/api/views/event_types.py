"""Serve event types of a channel: what producers may send, and the schema of its body."""

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.access.principal import Principal
from channels_app.api import base, cursor, openapi
from channels_app.api.base import ApiView, ResourceView, json_object
from channels_app.core import keys
from channels_app.core.errors import Forbidden, NotFound
from channels_app.ingest import publication
from channels_app.models import EventType
from channels_app.registry import event_types
from channels_app.serializers.event_types import EventTypeSerializer
from channels_app.serializers.fields import EventTypeName

SETTINGS, CHANGES, EVENT_TYPE = openapi.described(EventTypeSerializer)
NAME = OpenApiParameter("name", EventTypeName().json_schema(), OpenApiParameter.PATH)
READ = keys.SCOPES
WRITE = ("register",)


class EventTypeListView(ApiView):
    """The event types of a channel."""

    scopes = {"GET": READ}

    @openapi.operation(
        "listEventTypes",
        "List the event types of a channel",
        tag="Event types",
        answers={200: openapi.page_of(EVENT_TYPE)},
        errors=(404, 422),
        parameters=(openapi.CHANNEL, *openapi.LIST),
    )
    def get(self, request: Request, channel: str) -> Response:
        """List the channel's event types, newest first."""
        config = publication.channel_of(channel)
        page = cursor.read(request)
        return Response(page.answer([_of(config.id)], EventTypeSerializer().to_representation))


class EventTypeView(ResourceView):
    """One event type.

    Only a producer's key (or an operator) may write it; a team's key reads it.
    """

    serializer = EventTypeSerializer
    scopes = {
        "GET": READ,
        "PUT": WRITE,
        "PATCH": WRITE,
        "DELETE": WRITE,
    }

    @openapi.operation(
        "getEventType",
        "Get an event type",
        tag="Event types",
        answers={200: EVENT_TYPE, 304: None},
        errors=(404,),
        parameters=(openapi.CHANNEL, NAME, *openapi.READING),
    )
    def get(self, request: Request, channel: str, name: str) -> Response:
        """Return the event type with its schema and example."""
        config = publication.channel_of(channel)
        event_type = (
            EventType.objects.select_related("channel")
            .filter(channel_id=config.id, name=name)
            .first()
        )
        if event_type is None:
            raise NotFound("unknown_event_type", f"The channel has no event type {name}.")
        return base.fresh(request, EventTypeSerializer(event_type).data, event_type.version)

    @openapi.operation(
        "putEventType",
        "Create or replace an event type",
        tag="Event types",
        body={openapi.JSON: SETTINGS},
        optional=True,
        answers={200: EVENT_TYPE, 201: EVENT_TYPE},
        errors=(400, 404, 411, 412, 413, 415, 422),
        parameters=(openapi.CHANNEL, NAME, *openapi.CREATING),
    )
    def put(self, request: Request, channel: str, name: str) -> Response:
        """Create or replace the event type. Repeating the call changes nothing."""
        _check_writer(self.principal, channel)
        body = json_object(request, optional=True)
        return self.written(event_types.put, channel, name, body)

    @openapi.operation(
        "patchEventType",
        "Change fields of an event type",
        tag="Event types",
        body={openapi.JSON: CHANGES},
        answers={200: EVENT_TYPE},
        errors=(400, 404, 411, 412, 413, 415, 422),
        parameters=(openapi.CHANNEL, NAME, *openapi.WRITING),
    )
    def patch(self, request: Request, channel: str, name: str) -> Response:
        """Change the given fields and keep the others."""
        _check_writer(self.principal, channel)
        body = json_object(request)
        return self.written(event_types.patch, channel, name, body)

    @openapi.operation(
        "deleteEventType",
        "Delete an event type",
        tag="Event types",
        answers={204: None},
        errors=(404, 412, 422),
        parameters=(openapi.CHANNEL, NAME, openapi.IF_MATCH),
    )
    def delete(self, request: Request, channel: str, name: str) -> Response:
        """Delete the event type. Messages of that type are then accepted without validation."""
        _check_writer(self.principal, channel)
        event_types.remove(
            channel,
            name,
            principal=self.principal,
            condition=base.precondition_of(request),
        )
        return Response(status=204)


def _of(channel_id: int) -> QuerySet[EventType]:
    return EventType.objects.select_related("channel").filter(channel_id=channel_id)


def _check_writer(principal: Principal, channel: str) -> None:
    # A schema decides what every producer of the channel may send. So neither consumers nor
    # producers without an explicit grant of the channel may write it.
    if principal.acts_for_team:
        raise Forbidden("producers_only", "Event types are registered with a producer's key.")
    if not principal.is_operator and channel not in principal.channels:
        raise Forbidden(
            "no_grant",
            f"Event types are written with a key that names {channel} among its channels.",
        )
