"""Serve consumers: services register them at each start, pause and resume them (S1-15)."""

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.access.principal import Principal
from channels_app.api import base, cursor, openapi
from channels_app.api.base import ApiView, ResourceView, json_object
from channels_app.core.errors import NotFound
from channels_app.ingest import publication
from channels_app.models import Consumer
from channels_app.registry import consumers, inbound_addresses, secrets
from channels_app.registry.resource import WriteResult
from channels_app.serializers.api_keys import OverlapSerializer
from channels_app.serializers.consumers import (
    ConsumerQuerySerializer,
    ConsumerSerializer,
    ConsumerWithSecretSerializer,
)

SETTINGS, CHANGES, CONSUMER = openapi.described(ConsumerSerializer)
WITH_SECRET = openapi.component("ConsumerWithSecret", ConsumerWithSecretSerializer().shown_schema())
OVERLAP = openapi.component("SecretRotation", OverlapSerializer().written_schema())
QUERY = ConsumerQuerySerializer()
READ, WRITE = ("read", "register"), ("register",)
PATH = (openapi.CHANNEL, openapi.CLIENT_ID)
Step = Callable[..., WriteResult[Consumer]]


class ConsumerListView(ApiView):
    """The caller's consumers on a channel."""

    scopes = {"GET": READ}

    @openapi.operation(
        "listConsumers",
        "List the consumers of a channel",
        tag="Consumers",
        answers={200: openapi.page_of(CONSUMER)},
        errors=(404, 422),
        parameters=(
            openapi.CHANNEL,
            *openapi.queries(ConsumerQuerySerializer),
            *openapi.LIST,
        ),
    )
    def get(self, request: Request, channel: str) -> Response:
        """List the channel's consumers, newest first."""
        config = publication.channel_of(channel)
        page = cursor.read(request)
        rows = _visible(self.principal, config.id)
        wanted = page.read(QUERY)
        rows = rows.filter(**wanted) if wanted else rows.exclude(state=Consumer.State.RETIRED)
        show = ConsumerSerializer(context=consumers.decrypted()).to_representation
        return Response(page.answer([rows], show))


class ShowsConsumer(ResourceView):
    """Responds with a consumer, and with the secret that was generated, if any."""

    def shown(self, done: WriteResult[Consumer]) -> Any:
        """As the API shows it."""
        return with_secret(done)


class ConsumerView(ShowsConsumer):
    """One consumer."""

    scopes = {
        "GET": READ,
        "PUT": WRITE,
        "PATCH": WRITE,
        "DELETE": WRITE,
    }

    @openapi.operation(
        "getConsumer",
        "Get a consumer",
        tag="Consumers",
        answers={200: CONSUMER, 304: None},
        errors=(404,),
        parameters=(*PATH, *openapi.READING),
    )
    def get(self, request: Request, channel: str, client_id: str) -> Response:
        """Return the consumer's settings and state, and public keys but no secrets."""
        config = publication.channel_of(channel)
        rows = _visible(self.principal, config.id).exclude(state=Consumer.State.RETIRED)
        consumer = rows.filter(client_id=client_id).first()
        if consumer is None:
            raise NotFound("unknown_consumer", f"The channel has no consumer {client_id}.")
        # Health changes without a new version, so the tag has to include it.
        return base.fresh(
            request, representation(consumer), consumer.version, consumer.condition.code
        )

    @openapi.operation(
        "putConsumer",
        "Register or replace a consumer",
        tag="Consumers",
        body={openapi.JSON: SETTINGS},
        answers={200: CONSUMER, 201: WITH_SECRET},
        errors=(400, 404, 411, 412, 413, 415, 422),
        parameters=(*PATH, *openapi.CREATING),
    )
    def put(self, request: Request, channel: str, client_id: str) -> Response:
        """Create the consumer or replace its settings. Repeating the call changes nothing.

        A 201 response contains the signing secret, which is not shown again. Registering a retired
        consumer makes it active again, with a new secret.
        """
        return self.written(
            consumers.put,
            channel,
            client_id,
            json_object(request),
        )

    @openapi.operation(
        "patchConsumer",
        "Change settings of a consumer",
        tag="Consumers",
        body={openapi.JSON: CHANGES},
        answers={200: CONSUMER},
        errors=(400, 404, 411, 412, 413, 415, 422),
        parameters=(*PATH, *openapi.WRITING),
    )
    def patch(self, request: Request, channel: str, client_id: str) -> Response:
        """Change the given settings and keep the others."""
        return self.written(
            consumers.patch,
            channel,
            client_id,
            json_object(request),
        )

    @openapi.operation(
        "deleteConsumer",
        "Retire a consumer",
        tag="Consumers",
        answers={204: None},
        errors=(404, 412, 422),
        parameters=(*PATH, openapi.IF_MATCH),
    )
    def delete(self, request: Request, channel: str, client_id: str) -> Response:
        """Retire the consumer: the broker sends it nothing more and keeps its history."""
        consumers.retire(
            channel,
            client_id,
            principal=self.principal,
            condition=base.precondition_of(request),
        )
        return Response(status=204)


class DoneView(ShowsConsumer):
    """An action on a consumer that needs no body."""

    scopes = {"POST": WRITE}

    def done(self, step: Step, channel: str, client_id: str) -> Response:
        """Run the step as the caller, and respond with the consumer."""
        return self.written(step, channel, client_id)


class PauseView(DoneView):
    """Pause a consumer."""

    @openapi.operation(
        "pauseConsumer",
        "Pause a consumer",
        tag="Consumers",
        answers={200: CONSUMER},
        errors=(404, 409, 412, 422),
        parameters=(*PATH, *openapi.WRITING),
    )
    def post(self, request: Request, channel: str, client_id: str) -> Response:
        """Stop deliveries to the consumer until it is resumed. New deliveries wait."""
        return self.done(consumers.pause, channel, client_id)


class ResumeView(DoneView):
    """Resume a consumer."""

    @openapi.operation(
        "resumeConsumer",
        "Resume a consumer",
        tag="Consumers",
        answers={200: CONSUMER},
        errors=(404, 412, 422),
        parameters=(*PATH, *openapi.WRITING),
    )
    def post(self, request: Request, channel: str, client_id: str) -> Response:
        """Resume deliveries after a pause, or after the broker disabled the consumer."""
        return self.done(consumers.resume, channel, client_id)


class SecretsView(ApiView):
    """Signing secrets of a consumer."""

    scopes = {"POST": WRITE}

    @openapi.operation(
        "rotateConsumerSecret",
        "Rotate the signing secret of a consumer",
        tag="Consumers",
        body={openapi.JSON: OVERLAP},
        optional=True,
        answers={201: WITH_SECRET},
        errors=(400, 404, 411, 412, 413, 415, 422),
        parameters=(*PATH, *openapi.WRITING),
    )
    def post(self, request: Request, channel: str, client_id: str) -> Response:
        """Create a new secret, shown once. Old secrets keep signing for `overlap_s` seconds."""
        done = secrets.rotate(
            channel,
            client_id,
            json_object(request, optional=True),
            principal=self.principal,
            condition=base.precondition_of(request),
        )
        return base.tagged(with_secret(done), done.row.version, status=201)


def representation(consumer: Consumer) -> dict[str, Any]:
    """The consumer as the API shows it."""
    return ConsumerSerializer(consumer, context=consumers.decrypted()).data


def with_secret(done: WriteResult[Consumer]) -> dict[str, Any]:
    """The consumer, with the secret that was generated, if any."""
    secret = {"secret": lambda row: done.secrets[0]} if done.secrets else {}
    return ConsumerWithSecretSerializer(done.row, context=consumers.decrypted() | secret).data


class InboundAddressView(DoneView):
    """The address at which a consumer's provider calls back."""

    @openapi.operation(
        "renewInboundAddress",
        "Renew the inbound address of a consumer",
        tag="Consumers",
        answers={200: CONSUMER},
        errors=(404, 409, 412, 422),
        parameters=(*PATH, *openapi.WRITING),
    )
    def post(self, request: Request, channel: str, client_id: str) -> Response:
        """Create a new inbound address. The current address stops working at once."""
        return self.done(inbound_addresses.renew, channel, client_id)


def _visible(principal: Principal, channel_id: int) -> QuerySet[Consumer]:
    related = ("channel", "team", "health", "dead_letter_channel")
    rows = Consumer.objects.select_related(*related).prefetch_related("secrets")
    return rows.filter(principal.owned(), channel_id=channel_id)
