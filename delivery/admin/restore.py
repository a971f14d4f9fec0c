"""Show restores from the lake in the console, with their progress and staged messages."""

from django.contrib import admin
from django.contrib.humanize.templatetags.humanize import intcomma
from django.urls import reverse
from django.utils.safestring import SafeString

from channels_app.admin import base
from channels_app.admin.base import dialog, display
from channels_app.core import ids
from channels_app.models import Consumer
from delivery.admin.replays import Live, LivePage, button
from delivery.maintenance import pipeline_runs
from delivery.models import PipelineRun, Restore
from delivery.replay import restore
from pipeline.contract.jobs import JOBS

State = Restore.State
TONE = {
    State.STAGING: "busy",
    State.STAGED: "busy",
    State.FINISHED: "good",
    State.CANCELLED: "calm",
    State.REFUSED: "bad",
}
HEADINGS = {
    State.STAGING: "Copying messages from the lake",
    State.STAGED: "Queueing them",
    State.FINISHED: "Done",
    State.CANCELLED: "Stopped",
    State.REFUSED: "Refused",
}
RUN, REPLAY = "admin:delivery_pipelinerun_change", "admin:delivery_replay_change"
STOP = dialog("Stop this restore?", "Deliveries that are already queued are still sent.", "Stop it")


@admin.register(Restore)
class RestoreAdmin(LivePage):
    """Restores from the lake to one consumer; `python -m pipeline replay` creates them."""

    list_display = ("name", "state_now", "consumer", "progress", "requested_by", "reason", "begun")
    ordering = ("-id",)
    sortable_by = ()
    list_before_template = "delivery/restore_top.html"
    actions_detail = ("see_audit", "stop")
    fields = (
        ("name", "state_now"),
        ("consumer", "asked"),
        ("requested_by", "reason"),
        ("progress", "rate_per_second"),
        ("begun", "ended"),
    )
    readonly_fields = (
        *("name", "state_now", "consumer", "asked", "progress", "begun", "ended"),
        *("requested_by", "reason", "rate_per_second"),
    )

    open_states = Restore.OPEN

    def audit_target(self, obj: Restore) -> str:
        """Its name in the audit log: that of its replay, once it has one."""
        if obj.replay_id:
            return f"replay:{ids.to_public(ids.REPLAY, obj.replay_id)}"
        return f"restore:{obj.pk}"

    def live(self, row: Restore) -> Live:
        """Its progress."""
        through = row.queued_count + row.skipped_count
        links = []
        if PipelineRun.objects.filter(pk=row.run_id).exists():
            links.append(("Its run", reverse(RUN, args=[row.run_id])))
        if row.replay_id:
            links.append(("Its deliveries as a replay", reverse(REPLAY, args=[row.replay_id])))
        return Live(
            HEADINGS[State(row.state)],
            f"{row.queued_count:,} of {row.matched_count:,} are queued",
            through,
            max(row.matched_count, through),
            "Queued or skipped",
            row.error,
            (
                ("Matched", row.matched_count),
                ("Copied", row.staged_count),
                ("Queued", row.queued_count),
                ("Skipped", row.skipped_count),
            ),
            _hint(row),
            tuple(links),
        )

    stop = button(STOP, "The restore is stopped.", restore.cancel)

    @display(description="Restore")
    def name(self, row: Restore) -> str:
        """Its number."""
        return base.fill('<span class="hs-id">{}</span>', str(row))

    @display(description="State")
    def state_now(self, row: Restore) -> SafeString:
        """Its state, in colour."""
        return base.label(row.state, TONE[State(row.state)])

    @display(description="Consumer")
    def consumer(self, row: Restore) -> str:
        """Its consumer and channel."""
        consumer = Consumer.objects.select_related("channel").filter(id=row.consumer_id).first()
        return (
            f"{consumer.channel.slug}/{consumer.client_id}" if consumer else f"({row.consumer_id})"
        )

    @display(description="Asked for")
    def asked(self, row: Restore) -> str:
        """The options of the command line."""
        asked = row.options.get("asked", {})
        options = {name: value for name, value in asked.items() if name != "consumer"}
        return (
            base.mono(" ".join(JOBS["replay"].command_line(options)))
            if any(options.values())
            else "all"
        )

    @display(description="Progress")
    def progress(self, row: Restore) -> str:
        """Number of staged and of inserted messages."""
        text = f"{intcomma(row.queued_count)} of {intcomma(row.matched_count)} queued"
        if waiting := row.staged_count - row.queued_count - row.skipped_count:
            text += f", {intcomma(waiting)} staged"
        if row.skipped_count:
            text += f", {intcomma(row.skipped_count)} skipped"
        return text

    @display(description="Begun")
    def begun(self, row: Restore) -> str:
        """When it began."""
        return base.instant(row.created_at, exact=False)

    @display(description="Ended")
    def ended(self, row: Restore) -> str:
        """When it ended."""
        return base.instant(row.finished_at, exact=False)


def _hint(row: Restore) -> str:
    """Return a hint or an instruction."""
    if row.state == State.STAGING and not pipeline_runs.unended().filter(pk=row.run_id).exists():
        return "Its run ended before it copied everything. Start it again with the same options."
    if row.state in Restore.OPEN and row.rate_per_second:
        return f"At most {row.rate_per_second:g} per second are queued."
    if row.skipped_count:
        return "The skipped ones were already queued or in flight, or had changed or expired."
    return ""
