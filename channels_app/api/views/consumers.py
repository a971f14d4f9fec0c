"""Serve consumers: services register them at each start, pause and resume them (S1-15)."""

from collections.abc import Callable, Mapping
from typing import Any

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api import cursor, etags, openapi, publishing
from channels_app.api.authentication import Caller
from channels_app.api.base import ApiView, json_object, stamps
from channels_app.conf import conf
from channels_app.core import backoff, consumer_config, fields, retry_overrides, settings, times
from channels_app.core.errors import Invalid, NotFound
from channels_app.models import Consumer
from channels_app.registry import consumers, secrets
from channels_app.registry.configuration import WriteResult
from channels_app.registry.consumers import FIELDS

SETTINGS = openapi.component("ConsumerSettings", fields.object_schema(FIELDS))
CHANGES = openapi.component("ConsumerChanges", fields.object_schema(FIELDS, partial=True))
OVERLAP = openapi.component("SecretRotation", fields.object_schema(secrets.FIELDS))
STATES = Consumer.State.values
SIGNING_KEY = openapi.component(
    "SigningKey",
    openapi.record(
        scheme={"type": "string", "enum": ["v1", "v1a"]},
        public_key={"type": "string", "description": "whpk_... for v1a; empty for v1."},
        created_at=openapi.INSTANT,
        expires_at=openapi.MAYBE_INSTANT,
    ),
)
EFFECTIVE = openapi.component(
    "EffectiveSettings",
    openapi.record(
        timeout_ms=openapi.WHOLE,
        max_attempts=openapi.WHOLE,
        max_in_flight=openapi.WHOLE,
        retry=fields.schema_of(settings.retry_policy),
        gives_up_after_s={"type": "number"},
        retry_overrides={
            "type": "array",
            "description": "Settings for these event types; the first matching entry applies.",
            "items": openapi.record(
                event_types={"type": "array", "items": openapi.TEXT},
                retry=fields.schema_of(settings.retry_policy),
                max_attempts=openapi.WHOLE,
                gives_up_after_s={"type": "number"},
            ),
        },
    ),
)
_PROPERTIES: dict[str, Mapping[str, Any]] = {
    "channel": fields.slug.schema,
    "client_id": fields.slug.schema,
    "state": {"type": "string", "enum": STATES},
    "health": {
        "type": "string",
        "enum": list(consumer_config.CODES),
        "description": "Health of the consumer. A change of health does not change `version`.",
    },
    "state_reason": openapi.TEXT,
    "state_changed_at": openapi.MAYBE_INSTANT,
    "inbound_url": {"type": ["string", "null"]},
    "signing_keys": {"type": "array", "items": SIGNING_KEY},
    "effective": EFFECTIVE,
}
_CONSUMER = openapi.resource(fields.object_schema(FIELDS), **_PROPERTIES)
CONSUMER = openapi.component("Consumer", _CONSUMER)
_SECRET = {"type": "string", "description": "whsec_..., shown once."}
WITH_SECRET = openapi.component(
    "ConsumerWithSecret",
    _CONSUMER | {"properties": _CONSUMER["properties"] | {"secret": _SECRET}},
)
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
            openapi.query("state", "Default: all but retired.", {"type": "string", "enum": STATES}),
            *openapi.LIST,
        ),
    )
    def get(self, request: Request, channel: str) -> Response:
        """List the channel's consumers, newest first."""
        view = publishing.channel_of(channel)
        page = cursor.read(request)
        mine = _visible(self.caller, view.id)
        state = page.filters.get("state")
        if state is None:
            mine = mine.exclude(state=Consumer.State.RETIRED)
        elif state in STATES:
            mine = mine.filter(state=state)
        else:
            detail = f"Choose from {', '.join(STATES)}."
            raise Invalid("invalid_parameter", detail, field="state")
        return Response(page.answer([mine], representation))


class ConsumerView(ApiView):
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
        view = publishing.channel_of(channel)
        mine = _visible(self.caller, view.id).exclude(state=Consumer.State.RETIRED)
        found = mine.filter(client_id=client_id).first()
        if found is None:
            raise NotFound("unknown_consumer", f"The channel has no consumer {client_id}.")
        # Health changes without a new version, so the tag has to include it.
        return etags.fresh(request, representation(found), found.version, found.condition.code)

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
        done = consumers.put(
            channel,
            client_id,
            json_object(request),
            actor=self.caller.actor,
            tenant=self.caller.tenant,
            condition=etags.precondition_of(request),
            may_publish=self.caller.may_publish,
        )
        place = f"channels/{channel}/consumers/{client_id}"
        return etags.registered(done, with_secret(done), place)

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
        done = consumers.patch(
            channel,
            client_id,
            json_object(request),
            actor=self.caller.actor,
            tenant=self.caller.tenant,
            condition=etags.precondition_of(request),
            may_publish=self.caller.may_publish,
        )
        return etags.registered(done, representation(done.row))

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
            actor=self.caller.actor,
            tenant=self.caller.tenant,
            condition=etags.precondition_of(request),
        )
        return Response(status=204)


class DoneView(ApiView):
    """An action on a consumer that needs no body."""

    scopes = {"POST": WRITE}

    def done(self, step: Step, request: Request, channel: str, client_id: str) -> Response:
        """Run the step as the caller, and respond with the consumer."""
        done = step(
            channel,
            client_id,
            actor=self.caller.actor,
            tenant=self.caller.tenant,
            condition=etags.precondition_of(request),
        )
        return etags.registered(done, representation(done.row))


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
        return self.done(consumers.pause, request, channel, client_id)


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
        return self.done(consumers.resume, request, channel, client_id)


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
            actor=self.caller.actor,
            tenant=self.caller.tenant,
            condition=etags.precondition_of(request),
        )
        return etags.tagged(with_secret(done), done.row.version, status=201)


def representation(consumer: Consumer) -> dict[str, Any]:
    """The consumer as the API shows it."""
    defaults, channel = conf(), consumer.channel
    changed_at = consumer.state_changed_at
    retry = consumer.retry if consumer.retry is not None else channel.default_retry
    attempts = consumer.max_attempts or defaults.max_attempts
    policy = backoff.parse_policy(retry)
    return {
        "channel": channel.slug,
        "client_id": consumer.client_id,
        "state": consumer.state,
        "health": consumer.condition.code,
        "state_reason": consumer.state_reason,
        "state_changed_at": times.text(changed_at) if changed_at else None,
        **consumers.describe(consumer),
        "inbound_url": consumers.address(consumer),
        "signing_keys": [
            {
                "scheme": secret.scheme,
                "public_key": secret.public_key,
                "created_at": times.text(secret.created_at),
                "expires_at": times.text(secret.expires_at) if secret.expires_at else None,
            }
            for secret in consumer.secrets.all()
        ],
        "effective": {
            "timeout_ms": consumer.timeout_ms or defaults.timeout_ms,
            "max_attempts": backoff.allowed_attempts(policy, attempts),
            "max_in_flight": consumer.max_in_flight or defaults.max_in_flight,
            "retry": retry if retry is not None else backoff.DEFAULT,
            "gives_up_after_s": backoff.total(policy, attempts),
            "retry_overrides": retry_overrides.effective(consumer.retry_overrides, retry, attempts),
        },
        **stamps(consumer),
    }


def with_secret(done: WriteResult[Consumer]) -> dict[str, Any]:
    """The consumer, with the secret that was generated, if any."""
    return representation(done.row) | ({"secret": done.secrets[0]} if done.secrets else {})


def _visible(caller: Caller, channel_id: int) -> QuerySet[Consumer]:
    related = ("channel", "team", "health", "dead_letter_channel")
    mine = Consumer.objects.select_related(*related).prefetch_related("secrets")
    mine = mine.filter(channel_id=channel_id)
    tenant = caller.tenant
    return mine if tenant.everything else mine.filter(team=tenant.team_id)


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
        return self.done(consumers.renew_inbound, request, channel, client_id)
