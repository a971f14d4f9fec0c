"""Show replays in the console with their progress, and stop them."""

import json
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

from channels_app.admin import base
from channels_app.admin.base import dialog, display
from channels_app.models import Channel, Consumer
from channels_app.rules import ids
from delivery.admin.live import Live, LivePage
from delivery.admin.stop_action import button
from delivery.models import Replay
from delivery.steps import replay

State = Replay.State
TONE = {State.RUNNING: "busy", State.FINISHED: "good", State.CANCELLED: "calm"}
STOP = dialog("Stop this replay?", "Deliveries that are already queued are still sent.", "Stop it")


@admin.register(Replay)
class ReplayAdmin(LivePage, base.BigList):
    """Replays. The list of deliveries and the API create them."""

    id_prefix = ids.REPLAY
    list_display = ("name", "created", "state_now", "progress", "requested_by", "reason")
    list_filter = ("state",)
    search_fields = ("id",)
    search_help_text = "rpl_… (the whole id)"
    actions_detail = ("see_audit", "stop")
    fields = (
        ("name", "state_now"),
        ("requested_by", "reason"),
        ("progress", "rate_per_second"),
        ("created", "finished"),
        "asked",
    )
    readonly_fields = ("name", "state_now", "progress", "created", "finished", "asked")
    open_states = (State.RUNNING,)

    def live(self, row: Replay) -> Live:
        """Its progress."""
        if row.state == State.RUNNING:
            hint, heading = "", "Queueing"
            if rate := row.rate_per_second:
                hint = f"At most {rate:g} per second are sent; a minute's worth is queued ahead."
        else:
            hint, heading = "", "Stopped" if row.state == State.CANCELLED else "Done"
        left = max(0, row.matched_count - row.replayed_count)
        if row.state == State.FINISHED and left:
            hint = "The skipped ones had changed meanwhile or had expired."
        return Live(
            heading,
            f"{row.replayed_count:,} of {row.matched_count:,} are queued again",
            row.replayed_count,
            # The matched count was taken at the creation; more may match since.
            max(row.matched_count, row.replayed_count, 1),
            "Queued again",
            facts=()
            if row.state == State.RUNNING
            else (
                ("Matched", row.matched_count),
                ("Queued again", row.replayed_count),
                ("Skipped", left),
            ),
            hint=hint,
            links=tuple(_links(replay.shown(row.filter))),
        )

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Find the replay of an id."""
        term = search_term.strip().lower()
        if not term:
            return queryset, False
        number = ids.from_public(ids.REPLAY, term)
        return (queryset.filter(pk=number) if number else queryset.none()), False

    def audit_target(self, obj: Replay) -> str:
        """Its name in the audit log."""
        return f"replay:{obj}"

    stop = button(STOP, "The replay is stopped.", replay.cancel)

    @display(description="Replay")
    def name(self, row: Replay) -> str:
        """Its public id."""
        return base.public_id(str(row))

    @display(description="State")
    def state_now(self, row: Replay) -> str:
        """Its state in colour."""
        return base.label(row.state, TONE[State(row.state)])

    @display(description="Replayed of matched")
    def progress(self, row: Replay) -> str:
        """Its progress."""
        return f"{row.replayed_count:,} of {row.matched_count:,}"

    @display(description="Requested at")
    def created(self, row: Replay) -> str:
        """When it was created."""
        return base.instant(row.created_at)

    @display(description="Ended at")
    def finished(self, row: Replay) -> str:
        """When it had processed all matching deliveries."""
        return base.instant(row.finished_at)

    @display(description="Filter")
    def asked(self, row: Replay) -> str:
        """Its filter."""
        return base.mono(json.dumps(replay.shown(row.filter), ensure_ascii=False))


def _links(wanted: dict[str, Any]) -> list[tuple[str, str]]:
    """Return links to the deliveries of the same channel or consumer."""
    channel = Channel.objects.filter(slug=wanted.get("channel", "")).first()
    if channel is None:
        return []
    chosen = f"channel={channel.pk}"
    name = wanted.get("consumer", "")
    consumer = Consumer.objects.filter(channel=channel, client_id=name).first() if name else None
    if consumer is not None:
        chosen += f"&consumer={consumer.pk}"
    place = f"{reverse('admin:delivery_delivery_changelist')}?{chosen}"
    titles = {"dead": "Still dead", "queued": "Waiting now", "delivered": "Delivered"}
    return [(title, f"{place}&state={state}") for state, title in titles.items()]
