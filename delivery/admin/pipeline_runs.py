"""Show pipeline jobs and runs in the console, and start runs."""

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.contrib.humanize.templatetags.humanize import intcomma
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from channels_app import clock
from channels_app.admin import base
from channels_app.admin.base import action, dialog, display
from channels_app.admin.choices import ChoicesDropdownFilter
from channels_app.errors import BrokerError
from delivery.admin.live import Live, LivePage
from delivery.admin.pipeline_forms import JobForm
from delivery.admin.pipeline_jobs import duration, job_statuses, shown, state, words
from delivery.admin.stop_action import button
from delivery.models import PipelineRun
from delivery.rules.principal import Principal
from delivery.runtime import pipeline
from delivery.steps import pipeline_runs
from pipeline.contract.jobs import JOBS

State = PipelineRun.State
ENDED = (State.FINISHED, State.FAILED, State.CANCELLED)
STOP = dialog("Stop this run?", "What it wrote is intact. The next run continues.", "Stop it")


@admin.register(PipelineRun)
class PipelineRunAdmin(LivePage, base.BigList):
    """Runs, newest first, below the jobs with their start buttons."""

    list_display = ("number", "job", "state_now", "stage_now", "asked", "took", "rows", "who")
    list_display_links = ("number", "job")
    list_filter = (("state", ChoicesDropdownFilter),)
    search_fields = ("job",)
    search_help_text = "a job's name"
    list_before_template = "delivery/jobs.html"
    actions_detail = ("see_audit", "again", "stop")
    fields = (
        ("number", "state_now"),
        ("job", "who"),
        ("asked", "began"),
        ("ended", "took"),
        ("place", "beat"),
        "said",
    )
    readonly_fields = (
        *("number", "state_now", "who", "asked", "began", "ended", "took", "place", "beat"),
        *("said", "rows", "stage_now"),
    )
    open_states = (State.QUEUED, State.RUNNING)

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """The state of each job."""
        return {
            "jobs": job_statuses(),
            "may_operate": self.has_operate_permission(request),
            "lake": settings.ENVIRONMENT.lake,
        }

    def live(self, row: PipelineRun) -> Live:
        """Its stage, progress, result and log."""
        return shown(row)

    def get_urls(self) -> list[URLPattern]:
        """Add the URL of each job's form."""
        view = self.admin_site.admin_view(self.start)
        own = path("start/<slug:job>/", view, name="delivery_pipelinerun_start")
        return [own, *super().get_urls()]

    def start(self, request: HttpRequest, job: str) -> HttpResponse:
        """Show the form of a job, start the run and redirect to its page."""
        base.require(self.has_operate_permission(request))
        known = JOBS.get(job)
        if known is None:
            raise Http404("There is no such job.")
        data = request.POST if request.method == "POST" else None
        form = JobForm(known, data, request.GET.dict(), _options_of(request.GET.get("again"), job))
        refused = ""
        if request.method == "POST" and form.is_valid():
            principal = Principal(base.actor(request), form.cleaned_data["reason"])
            try:
                run = pipeline_runs.ask(job, form.options(), principal, now=clock.now())
            except BrokerError as error:
                refused = error.detail
            else:
                pipeline.wake_up()
                return redirect(self.page_of(run.pk))
        context = self.admin_site.each_context(request) | {
            "title": f"Start {known.title.lower()}",
            "opts": self.opts,
            "job": known,
            "form": form,
            "refused": refused,
            "is_installed": pipeline.is_installed(),
        }
        return TemplateResponse(request, "delivery/start.html", context)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> Any:
        """Find the runs of a job."""
        term = search_term.strip().lower()
        return (queryset.filter(job=term) if term else queryset), False

    def audit_target(self, obj: PipelineRun) -> str:
        """Its name in the audit log."""
        return pipeline_runs.target(obj.job)

    def has_again_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Whether the run has ended and its job still exists."""
        ended = {"state__in": ENDED, "job__in": list(JOBS)}
        return self.is_now(request, object_id, **ended)

    @action(description="Start again", icon="replay", permissions=["again"])
    def again(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Redirect to the job's form, filled with the run's options."""
        run = PipelineRun.objects.defer("log").get(pk=object_id)
        url = reverse("admin:delivery_pipelinerun_start", args=[run.job])
        return redirect(f"{url}?again={run.pk}")

    stop = button(STOP, "The run is asked to stop.", pipeline_runs.cancel)

    @display(description="Run")
    def number(self, run: PipelineRun) -> str:
        """Its number, which is also passed to its process."""
        return str(run.pk)

    @display(description="State")
    def state_now(self, run: PipelineRun) -> str:
        """Its state in colour."""
        return state(run)

    @display(description="Stage")
    def stage_now(self, run: PipelineRun) -> str:
        """Its stage, or its error."""
        if run.error:
            return run.error.splitlines()[0][:100]
        if run.state != State.RUNNING:
            return base.NONE
        return f"{run.stage} {run.done:,} of {run.total:,}" if run.total else run.stage

    @display(description="Requested by")
    def who(self, run: PipelineRun) -> str:
        """A person, the command line or the scheduler."""
        return run.requested_by

    @display(description="Requested at")
    def asked(self, run: PipelineRun) -> str:
        """When it was requested."""
        return base.instant(run.requested_at, exact=False)

    @display(description="Began")
    def began(self, run: PipelineRun) -> str:
        """When its process began."""
        return base.instant(run.started_at, exact=False)

    @display(description="Ended")
    def ended(self, run: PipelineRun) -> str:
        """When it ended."""
        return base.instant(run.finished_at, exact=False)

    @display(description="Took")
    def took(self, run: PipelineRun) -> str:
        """Time from beginning to end, or until now."""
        return duration(run, clock.now())

    @display(description="Rows")
    def rows(self, run: PipelineRun) -> str:
        """Number of rows that it read."""
        return intcomma(run.row_count)

    @display(description="Process")
    def place(self, run: PipelineRun) -> str:
        """Its host."""
        return f"{run.pid} on {run.host}" if run.pid else run.host or base.NONE

    @display(description="Heartbeat")
    def beat(self, run: PipelineRun) -> str:
        """Its last heartbeat."""
        return base.instant(run.heartbeat_at, exact=False)

    @display(description="Options")
    def said(self, run: PipelineRun) -> str:
        """Its options; those that identify a person only as a digest."""
        return base.mono(" ".join(words(run)))


def _options_of(number: str | None, job: str) -> dict[str, Any]:
    """Return options of an earlier run of the job, without those that identify a person."""
    if not number or not number.isdecimal():
        return {}
    run = PipelineRun.objects.filter(pk=number, job=job).defer("log").first()
    return dict(run.options) if run else {}
