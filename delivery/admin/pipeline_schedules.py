"""Show the schedule of pipeline jobs in the console, and the locks of jobs."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget

from channels_app.admin import base
from channels_app.admin.base import action, dialog, display
from delivery.admin.pipeline_jobs import is_on, period
from delivery.models import PipelineLock, PipelineSchedule
from delivery.rules.principal import Principal
from delivery.steps import pipeline_runs

Mode = PipelineSchedule.Mode
MAX_MINUTES = 366 * 24 * 60
"""Maximum interval in minutes."""


class Rhythm(base.ReasonForm):
    """The interval of a job."""

    field_order = ("mode", "every_minutes", "reason")
    mode = forms.ChoiceField(
        label="Runs automatically", choices=Mode.choices, widget=UnfoldAdminSelectWidget
    )
    every_minutes = forms.IntegerField(
        label="Interval in minutes",
        min_value=1,
        max_value=MAX_MINUTES,
        widget=UnfoldAdminIntegerFieldWidget,
    )

    def __init__(
        self, request: HttpRequest, object_id: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(request, object_id, *args, **kwargs)
        row = PipelineSchedule.objects.filter(pk=object_id).first()
        if row is not None:
            self.initial |= {"mode": row.mode, "every_minutes": row.every_minutes}


@admin.register(PipelineSchedule)
class PipelineScheduleAdmin(base.ReadOnly):
    """Schedules of pipeline jobs."""

    list_display = ("job", "state_now", "every", "last", "next_run")
    ordering = ("job",)
    sortable_by = ()
    fields = (("job", "state_now"), ("every", "mode"), ("last", "next_run"))
    readonly_fields = ("state_now", "every", "last", "next_run")
    actions_detail = ("see_audit", "plan")

    def audit_target(self, obj: PipelineSchedule) -> str:
        """Its name in the audit log."""
        return pipeline_runs.target(obj.job)

    @action(
        description="Change the schedule",
        icon="schedule",
        permissions=["operate"],
        dialog=dialog(
            "Change the schedule",
            "Each run starts its own Spark: about a minute of two cores, and 1 GB of memory.",
            "Change the schedule",
            Rhythm,
        ),
    )
    def plan(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        """Change when the job runs."""
        values = form.cleaned_data
        principal = Principal(base.actor(request), values["reason"])
        with base.telling(request, "The schedule is changed."):
            pipeline_runs.plan(object_id, values["mode"], values["every_minutes"], principal)
        return base.leave_dialog(self.page_of(object_id))

    @display(description="Runs automatically")
    def state_now(self, row: PipelineSchedule) -> str:
        """Whether it is enabled, and why."""
        if is_on(row):
            return base.label("on", "good")
        return base.label("waits for a lake" if row.mode == Mode.LAKE else "off")

    @display(description="Every")
    def every(self, row: PipelineSchedule) -> str:
        """Its interval."""
        return period(row.every_minutes)

    @display(description="Last requested")
    def last(self, row: PipelineSchedule) -> str:
        """When the scheduler last requested a run."""
        return base.instant(row.last_at, exact=False)

    @display(description="Next")
    def next_run(self, row: PipelineSchedule) -> str:
        """When the scheduler requests the next run."""
        if not is_on(row):
            return base.NONE
        at = pipeline_runs.next_at(row)
        return base.instant(at, exact=False) if at else "within a minute"


@admin.register(PipelineLock)
class PipelineLockAdmin(base.ReadOnly):
    """The active run of each job."""

    list_display = ("job", "run_id", "ends")
    ordering = ("job",)

    @display(description="Until")
    def ends(self, lock: PipelineLock) -> str:
        """When the lock expires, unless the run extends it."""
        return base.instant(lock.until)
