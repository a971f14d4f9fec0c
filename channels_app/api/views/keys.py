"""Serve a producer's API keys: create, rotate with an overlap, revoke. Each is shown once."""

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api import base, cursor, openapi
from channels_app.api.base import ApiView, json_object
from channels_app.core.errors import NotFound
from channels_app.models import ApiKey, Producer
from channels_app.registry import api_keys
from channels_app.registry.resource import WriteResult
from channels_app.serializers.api_keys import (
    KeySerializer,
    KeyWithTextSerializer,
    OverlapSerializer,
)

WISHES = openapi.component("KeyWishes", KeySerializer().written_schema())
ROTATION = openapi.component("KeyRotation", OverlapSerializer().written_schema())
KEY = openapi.component("Key", KeySerializer().shown_schema())
WITH_TEXT = openapi.component("KeyWithText", KeyWithTextSerializer().shown_schema())
KEY_ID = OpenApiParameter("key_id", str, OpenApiParameter.PATH)


class KeyListView(ApiView):
    """The keys of one producer."""

    scopes = {"GET": ("admin",), "POST": ("admin",)}

    @openapi.operation(
        "listApiKeys",
        "List the keys of a producer",
        tag="Producers",
        answers={200: openapi.page_of(KEY)},
        errors=(404, 422),
        parameters=(openapi.PRODUCER, *openapi.LIST),
    )
    def get(self, request: Request, producer: str) -> Response:
        """List the producer's keys, newest first, including revoked and expired ones."""
        owner = Producer.objects.filter(slug=producer).first()
        if owner is None:
            raise NotFound("unknown_producer", f"There is no producer {producer}.")
        page = cursor.read(request)
        rows = ApiKey.objects.select_related("producer").filter(producer=owner)
        return Response(page.answer([rows], KeySerializer().to_representation))

    @openapi.operation(
        "createApiKey",
        "Create a key",
        tag="Producers",
        body={openapi.JSON: WISHES},
        answers={201: WITH_TEXT},
        errors=(400, 404, 411, 413, 415, 422),
        parameters=(openapi.PRODUCER, openapi.ETAG),
    )
    def post(self, request: Request, producer: str) -> Response:
        """Create a key. Only this response contains its text."""
        done = api_keys.create(json_object(request), principal=self.principal, producer=producer)
        return _created(done)


class KeyView(ApiView):
    """One key of a producer."""

    scopes = {"DELETE": ("admin",)}

    @openapi.operation(
        "revokeApiKey",
        "Revoke a key",
        tag="Producers",
        answers={204: None},
        errors=(404, 412, 422),
        parameters=(openapi.PRODUCER, KEY_ID, openapi.IF_MATCH),
    )
    def delete(self, request: Request, producer: str, key_id: str) -> Response:
        """Revoke the key. Every process rejects it within a second."""
        api_keys.revoke(
            key_id,
            principal=self.principal,
            producer=producer,
            condition=base.precondition_of(request),
        )
        return Response(status=204)


class KeyRotationView(ApiView):
    """Rotation of a key."""

    scopes = {"POST": ("admin",)}

    @openapi.operation(
        "rotateApiKey",
        "Rotate a key",
        tag="Producers",
        body={openapi.JSON: ROTATION},
        optional=True,
        answers={201: WITH_TEXT},
        errors=(400, 404, 409, 411, 412, 413, 415, 422),
        parameters=(openapi.PRODUCER, KEY_ID, *openapi.WRITING),
    )
    def post(self, request: Request, producer: str, key_id: str) -> Response:
        """Create a key with the same rights. The old key expires in `overlap_s` seconds."""
        done = api_keys.rotate(
            key_id,
            json_object(request, optional=True),
            principal=self.principal,
            producer=producer,
            condition=base.precondition_of(request),
        )
        return _created(done)


def _created(done: WriteResult[ApiKey]) -> Response:
    secrets = api_keys.Shown(*done.secrets)._asdict()
    context = {name: lambda row, text=text: text for name, text in secrets.items()}
    body = KeyWithTextSerializer(done.row, context=context).data
    return base.tagged(body, done.row.version, status=201)
