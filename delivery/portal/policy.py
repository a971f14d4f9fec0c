"""Decide which webhooks, deliveries and replays a team may see; all others are a 404."""

from dataclasses import replace

from django.db.models import QuerySet
from django.http import Http404

from channels_app.access.principal import Principal
from channels_app.core import ids
from channels_app.models import Channel, Consumer, Team
from channels_app.portal.access import TeamRequest, TeamView
from channels_app.registry import api_keys
from channels_app.registry.cache import ConsumerConfig, config_cache
from delivery.models import Delivery, Replay

EXTERNAL = Channel.Exposure.EXTERNAL.value
RETIRED = Consumer.State.RETIRED.value


class WebhookView(TeamView):
    """A page about webhooks."""

    section = "webhooks"


def webhooks_of(team: Team) -> QuerySet[Consumer]:
    """Return the team's webhooks: its consumers on external channels, except retired ones.

    Pull consumers are included, since people manage them in the same way.
    """
    consumers = Consumer.objects.filter(team_id=team.id, channel__exposure=EXTERNAL)
    return consumers.exclude(state=RETIRED).select_related("channel")


def webhook_of(team: Team, channel: str, client_id: str) -> Consumer:
    """Return the webhook of the URL. Raises Http404."""
    webhooks = webhooks_of(team).select_related(
        "channel", "health", "health_status", "team", "dead_letter_channel"
    )
    webhook = webhooks.filter(channel__slug=channel, client_id=client_id).first()
    if webhook is None:
        raise Http404(f"There is no webhook {client_id} on {channel}.")
    return webhook


def channel_of(slug: str) -> Channel:
    """Return an external channel. Raises Http404."""
    channel = Channel.objects.filter(slug=slug, exposure=EXTERNAL).first()
    if channel is None:
        raise Http404(f"There is no channel {slug}.")
    return channel


def delivery_of(webhook: Consumer, text: str) -> Delivery:
    """Return one of the webhook's deliveries. Raises Http404."""
    number = ids.from_public(ids.DELIVERY, text)
    rows = Delivery.objects.select_related("message")
    row = rows.filter(id=number).first() if number is not None else None
    if row is None or row.consumer_id != webhook.id:
        raise Http404(f"There is no delivery {text}.")
    return row


def replay_of(webhook: Consumer, text: str) -> Replay:
    """Return a replay that the team created for this webhook. Raises Http404."""
    number = ids.from_public(ids.REPLAY, text)
    rows = Replay.objects.filter(team_id=webhook.team_id)
    row = rows.filter(id=number).first() if number is not None else None
    if row is None or row.consumer_ids != [webhook.id]:
        raise Http404(f"There is no replay {text}.")
    return row


def hidden(request: TeamRequest, webhook: Consumer) -> str:
    """Return why bodies and responses are hidden from this member; '' if they are not."""
    if request.principal.may_open(webhook.channel):
        return ""
    return "The channel is sensitive: only owners of the team see what its messages hold."


def config_of(webhook: Consumer) -> ConsumerConfig:
    """Return the webhook's effective configuration. Raises Http404 when it was just retired."""
    config_cache.refresh(now=True)
    config = config_cache.consumers().get(webhook.id)
    if config is None:
        raise Http404(f"There is no webhook {webhook.client_id}.")
    return config


def publisher_of(request: TeamRequest) -> Principal:
    """Return the member, who may also publish where the keys of the team's producers may."""
    channels = api_keys.published_on(request.team.slug)
    if not channels:
        return request.principal
    scopes = (*request.principal.scopes, "publish")
    return replace(request.principal, scopes=scopes, channels=channels)
