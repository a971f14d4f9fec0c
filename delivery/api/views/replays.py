"""Count, create, follow and stop replays and backfills."""

from typing import Any, ClassVar

from django.db.models import Q
from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.access.principal import Principal
from channels_app.api import base, cursor
from channels_app.api.base import ApiView
from channels_app.core import ids
from channels_app.core.errors import Conflict, NotFound
from channels_app.database import clock
from channels_app.database.raw import by_index
from channels_app.ingest import publication
from channels_app.models import Consumer
from delivery import replay
from delivery.api import bodies, documents, policy
from delivery.models import Replay
from delivery.replay import ReplayFilter
from delivery.serializers.filters import ReplayQuerySerializer
from delivery.serializers.messages import MessageSerializer
from delivery.serializers.replays import (
    BackfillPreviewSerializer,
    ReplayPreviewSerializer,
    ReplaySerializer,
)

QUERY = ReplayQuerySerializer()


class ReplaysView(ApiView):
    """List replays, and create one."""

    scopes: ClassVar = {"GET": ("read", "replay"), "POST": ("replay",)}

    @documents.list_replays
    def get(self, request: Request) -> Response:
        """List replays and backfills, newest first."""
        page = cursor.read(request)
        rows = Replay.objects.all()
        if filters := page.read(QUERY):
            # MySQL would intersect this index with the primary key, and sort.
            rows = by_index(rows, "replay_state").filter(**filters)
        return Response(page.answer([rows], ReplaySerializer.show, _visible(self.principal)))

    @documents.create_replay
    def post(self, request: Request) -> Response:
        """Replay all finished deliveries that match a filter.

        Queues those that match now with a fresh budget of attempts, oldest first and each at most
        once, at `rate_per_second` if given. `dry_run` only counts, and returns a sample. Expired
        messages are skipped.
        """
        values = bodies.read(request, bodies.REPLAY)
        wanted = replay.parse(values.pop("filter", None), at="filter")
        principal = self.principal
        if wanted.channel:
            _check_granted(principal, wanted.channel)
        consumers = replay.consumers_of(wanted, principal)
        return _answer(principal, wanted, consumers, values)


class BackfillView(ApiView):
    """Backfill a consumer that registered late."""

    scopes: ClassVar = {"POST": ("replay",)}

    @documents.create_backfill
    def post(self, request: Request, channel: str, client_id: str) -> Response:
        """Send past messages to a consumer that registered late.

        Creates a delivery for every stored message that matches the consumer's own filter and has
        none for this consumer. Repeating it creates no delivery twice. `dry_run` only counts. A
        team gets messages accepted since it has had access to the channel, unless the channel's
        `history` is `shared`.
        """
        consumer = policy.consumer_of(self.principal, channel, client_id)
        values = bodies.read(request, bodies.BACKFILL)
        wanted = replay.backfill(values, consumer, self.principal, now=clock.now())
        if consumer.state == Consumer.State.RETIRED:
            raise Conflict(
                "consumer_retired", "The consumer is retired: the broker sends it nothing."
            )
        return _answer(self.principal, wanted, [consumer], values)


class ReplayView(ApiView):
    """One replay with its progress."""

    scopes: ClassVar = {"GET": ("read", "replay")}

    @documents.get_replay
    def get(self, request: Request, replay_id: str) -> Response:
        """Return the progress of a replay."""
        row = _replay_of(self.principal, replay_id)
        return base.fresh(request, ReplaySerializer.show(row), row.version)


class ReplayCancelView(ApiView):
    """Stop a replay."""

    scopes: ClassVar = {"POST": ("replay",)}

    @documents.cancel_replay
    def post(self, request: Request, replay_id: str) -> Response:
        """Stop a replay.

        Deliveries that it has queued already are still sent; with a rate these are at most a
        minute's worth.
        """
        row = _replay_of(self.principal, replay_id)
        reason = bodies.read(request, bodies.REPAIR, optional=True).get("reason", "")
        principal = self.principal.because(reason)
        after = replay.cancel(row.id, principal, now=clock.now())
        return base.tagged(ReplaySerializer.show(after), after.version)


def _answer(
    principal: Principal, wanted: ReplayFilter, consumers: list[Consumer], values: dict[str, Any]
) -> Response:
    """Respond with a dry run's preview, or with the created replay."""
    now = clock.now()
    if values.get("dry_run"):
        return Response(_preview(wanted, consumers))
    row = replay.create(
        wanted,
        consumers,
        principal.because(values.get("reason", "")),
        now=now,
        rate_per_second=values.get("rate_per_second"),
    )
    shown = ReplaySerializer.show(row)
    return base.tagged(shown, row.version, status=202, location=shown["url"])


def _preview(wanted: ReplayFilter, consumers: list[Consumer]) -> dict[str, Any]:
    now = clock.now()
    count = replay.count(wanted, consumers, now)
    preview = {
        "dry_run": True,
        "filter": wanted.to_json(),
        "matched_count": count.number,
        "exact": count.exact,
    }
    if wanted.kind == "missing":
        preview["sample"] = replay.message_sample(wanted, consumers, now)
        context = MessageSerializer.context_for(wanted.channel, now)
        return BackfillPreviewSerializer(preview, context=context).data
    loaded = {consumer.id: consumer for consumer in consumers}
    preview["sample"] = sample = replay.sample(wanted, consumers, now)
    for row in sample:
        row.consumer = loaded[row.consumer_id]
        row.channel = row.consumer.channel
    return ReplayPreviewSerializer.show(preview)


def _check_granted(principal: Principal, channel: str) -> None:
    config = publication.channel_of(channel)
    if not principal.sees(config.slug, config.exposure):
        raise NotFound("unknown_channel", f"There is no channel {channel}.")


def _visible(principal: Principal) -> Q:
    """Return the condition for the replays of the caller's team on its granted channels."""
    if principal.is_operator:
        return Q()
    wanted = Q(team_id=principal.team_id)
    if principal.channels:
        wanted &= Q(filter__channel__in=list(principal.channels)) | Q(requested_by=principal.actor)
    return wanted


def _replay_of(principal: Principal, text: str) -> Replay:
    number = ids.from_public(ids.REPLAY, text)
    row = (
        Replay.objects.filter(_visible(principal), id=number).first()
        if number is not None
        else None
    )
    if row is None:
        raise NotFound("unknown_replay", "There is no such replay.")
    return row
