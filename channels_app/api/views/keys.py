"""Serve a producer's API keys: create, rotate with an overlap, revoke. Each is shown once."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api import cursor, etags, openapi
from channels_app.api.base import ApiView, json_object, stamps
from channels_app.core import fields, times
from channels_app.core.errors import NotFound
from channels_app.models import ApiKey, Producer
from channels_app.registry import api_keys
from channels_app.registry.api_keys import FIELDS, OVERLAP
from channels_app.registry.configuration import WriteResult

WISHES = openapi.component("KeyWishes", fields.object_schema(FIELDS))
ROTATION = openapi.component("KeyRotation", fields.object_schema(OVERLAP))
_PROPERTIES: dict[str, Any] = {
    "key_id": openapi.TEXT,
    "producer": openapi.MAYBE_TEXT,
    "revoked_at": openapi.MAYBE_INSTANT,
    "last_used_at": openapi.MAYBE_INSTANT,
}
_TEXT = {"type": "string", "description": "hsk_..., shown once."}
KEY = openapi.component("Key", openapi.resource(fields.object_schema(FIELDS), **_PROPERTIES))
WITH_TEXT = openapi.component(
    "KeyWithText",
    openapi.resource(
        fields.object_schema(FIELDS),
        **_PROPERTIES,
        key=_TEXT,
        aws_access_key_id=openapi.MAYBE_TEXT
        | {"description": "For SQS clients; null for a key without sigv4."},
        aws_secret_access_key=openapi.MAYBE_TEXT
        | {"description": "Signs requests of SQS clients (AWS Signature Version 4); shown once."},
    ),
)
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
        mine = ApiKey.objects.select_related("producer").filter(producer=owner)
        return Response(page.answer([mine], representation))

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
        done = api_keys.create(json_object(request), actor=self.caller.actor, producer=producer)
        return _made(done)


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
            actor=self.caller.actor,
            producer=producer,
            condition=etags.precondition_of(request),
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
            actor=self.caller.actor,
            producer=producer,
            condition=etags.precondition_of(request),
        )
        return _made(done)


def representation(key: ApiKey) -> dict[str, Any]:
    """The key as the API shows it, without secrets."""
    return {
        "key_id": key.key_id,
        "producer": key.producer.slug if key.producer else None,
        **api_keys.describe(key),
        "revoked_at": times.text(key.revoked_at) if key.revoked_at else None,
        "last_used_at": times.text(key.last_used_at) if key.last_used_at else None,
        **stamps(key),
    }


def _made(done: WriteResult[ApiKey]) -> Response:
    secrets = api_keys.Shown(*done.secrets)
    body = {
        **representation(done.row),
        "key": secrets.key,
        "aws_access_key_id": secrets.access_key_id,
        "aws_secret_access_key": secrets.secret_access_key,
    }
    return etags.tagged(body, done.row.version, status=201)
