"""Serve producers and their limits."""

from django.db.models import Q, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.access.principal import Principal
from channels_app.api import base, cursor, openapi
from channels_app.api.base import ApiView, ResourceView, json_object
from channels_app.core.errors import NotFound
from channels_app.models import Producer
from channels_app.registry import producers
from channels_app.serializers.producers import ProducerSerializer

SETTINGS, CHANGES, PRODUCER = openapi.described(ProducerSerializer)


class ProducerListView(ApiView):
    """The producers that exist for the caller."""

    scopes = {"GET": ("read",)}

    @openapi.operation(
        "listProducers",
        "List producers",
        tag="Producers",
        answers={200: openapi.page_of(PRODUCER)},
        errors=(422,),
        parameters=openapi.LIST,
    )
    def get(self, request: Request) -> Response:
        """List the producers, newest first."""
        page = cursor.read(request)
        return Response(
            page.answer([_visible(self.principal)], ProducerSerializer().to_representation)
        )


class ProducerView(ResourceView):
    """One producer."""

    serializer = ProducerSerializer
    scopes = {
        "GET": ("read",),
        "PUT": ("admin",),
        "PATCH": ("admin",),
    }

    @openapi.operation(
        "getProducer",
        "Get a producer",
        tag="Producers",
        answers={200: PRODUCER, 304: None},
        errors=(404,),
        parameters=(openapi.PRODUCER, *openapi.READING),
    )
    def get(self, request: Request, producer: str) -> Response:
        """Return the producer's settings."""
        row = _visible(self.principal).filter(slug=producer).first()
        if row is None:
            raise NotFound("unknown_producer", f"There is no producer {producer}.")
        return base.fresh(request, ProducerSerializer(row).data, row.version)

    @openapi.operation(
        "putProducer",
        "Create or replace a producer",
        tag="Producers",
        body={openapi.JSON: SETTINGS},
        optional=True,
        answers={200: PRODUCER, 201: PRODUCER},
        errors=(400, 411, 412, 413, 415, 422),
        parameters=(openapi.PRODUCER, *openapi.CREATING),
    )
    def put(self, request: Request, producer: str) -> Response:
        """Create or replace the producer. Repeating the call changes nothing."""
        return self.written(producers.put, producer, json_object(request, optional=True))

    @openapi.operation(
        "patchProducer",
        "Change settings of a producer",
        tag="Producers",
        body={openapi.JSON: CHANGES},
        answers={200: PRODUCER},
        errors=(400, 404, 411, 412, 413, 415, 422),
        parameters=(openapi.PRODUCER, *openapi.WRITING),
    )
    def patch(self, request: Request, producer: str) -> Response:
        """Change the given settings and keep the others."""
        return self.written(producers.patch, producer, json_object(request))


def _visible(principal: Principal) -> QuerySet[Producer]:
    every = Producer.objects.select_related("team")
    if principal.is_operator:
        return every
    own = Q(pk=principal.producer_id)
    of_team = Q(team_id=principal.team_id) if principal.team_id is not None else Q(pk=None)
    return every.filter(own | of_team)
