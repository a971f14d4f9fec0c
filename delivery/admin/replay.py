"""Admin page of replays: what was asked for, how far it is, and the button that stops it."""

import json
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from unfold.enums import ActionVariant

from channels_app import clock
from channels_app.admin import base
from channels_app.admin.base import action, dialog, display
from channels_app.rules import ids
from delivery.models import Replay
from delivery.rules.asker import Asker
from delivery.steps import replay

State = Replay.State
TONE = {State.RUNNING: "busy", State.FINISHED: "good", State.CANCELLED: "calm"}
STOP = dialog("Stop this replay?", "What it has queued already is sent all the same.", "Stop it")


@admin.register(Replay)
class ReplayAdmin(base.BigList):
    """Replays; they are begun on the list of deliveries, or through the API."""

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

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """The replay of an id."""
        term = search_term.strip().lower()
        if not term:
            return queryset, False
        number = ids.from_public(ids.REPLAY, term)
        return (queryset.filter(pk=number) if number else queryset.none()), False

    def audit_target(self, obj: Replay) -> str:
        """As the steps name it."""
        return f"replay:{obj}"

    def has_stop_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Only what runs can be stopped."""
        if not self.has_operate_permission(request):
            return False
        return not object_id or Replay.objects.filter(pk=object_id, state=State.RUNNING).exists()

    @action(
        description="Stop",
        icon="stop_circle",
        permissions=["stop"],
        dialog=STOP,
        variant=ActionVariant.DANGER,
    )
    def stop(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Queue nothing more."""
        asker = Asker(base.actor(request), form.cleaned_data["reason"])
        with base.telling(request, "The replay is stopped."):
            replay.cancel(int(object_id), asker, now=clock.now())
        return base.leave_dialog(self.page_of(object_id))

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
        """How far it is."""
        return f"{row.replayed_count:,} of {row.matched_count:,}"

    @display(description="Asked at")
    def created(self, row: Replay) -> str:
        """When it was asked for."""
        return base.instant(row.created_at)

    @display(description="Ended at")
    def finished(self, row: Replay) -> str:
        """When it had looked at everything."""
        return base.instant(row.finished_at)

    @display(description="Filter")
    def asked(self, row: Replay) -> str:
        """What it takes."""
        return base.mono(json.dumps(replay.shown(row.filter), ensure_ascii=False))
