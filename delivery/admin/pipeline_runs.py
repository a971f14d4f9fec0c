"""Admin pages of the pipeline's runs: how each job stands, each run live, and how one is begun."""

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
from delivery.admin.pipeline_jobs import duration, shown, standings, state, words
from delivery.admin.stop_action import button
from delivery.models import PipelineRun
from delivery.rules.pipeline_jobs import JOBS
from delivery.rules.principal import Principal
from delivery.runtime import pipeline
from delivery.steps import pipeline_runs

State = PipelineRun.State
ENDED = (State.FINISHED, State.FAILED, State.CANCELLED)
STOP = dialog("Stop this run?", "What it has written is whole; the next run goes on.", "Stop it")


@admin.register(PipelineRun)
class PipelineRunAdmin(LivePage, base.BigList):
    """Runs, newest first; over them each job with the button that begins one."""

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
        """How each job stands."""
        return {
            "jobs": standings(),
            "may_operate": self.has_operate_permission(request),
            "lake": settings.ENVIRONMENT.lake,
        }

    def live(self, row: PipelineRun) -> Live:
        """Its stage, bar, result and log."""
        return shown(row)

    def get_urls(self) -> list[URLPattern]:
        """The usual ones, and the form of each job."""
        view = self.admin_site.admin_view(self.start)
        own = path("start/<slug:job>/", view, name="delivery_pipelinerun_start")
        return [own, *super().get_urls()]

    def start(self, request: HttpRequest, job: str) -> HttpResponse:
        """Choose how, say so; then it goes to the run's own page."""
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
        """The runs of a job."""
        term = search_term.strip().lower()
        return (queryset.filter(job=term) if term else queryset), False

    def audit_target(self, obj: PipelineRun) -> str:
        """As the steps name it."""
        return pipeline_runs.target(obj.job)

    def has_again_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Only of what has ended, and of jobs that there still are."""
        ended = {"state__in": ENDED, "job__in": list(JOBS)}
        return self.is_now(request, object_id, **ended)

    @action(description="Start it again", icon="replay", permissions=["again"])
    def again(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """To its job's form, filled in as it was."""
        run = PipelineRun.objects.defer("log").get(pk=object_id)
        url = reverse("admin:delivery_pipelinerun_start", args=[run.job])
        return redirect(f"{url}?again={run.pk}")

    stop = button(STOP, "The run is asked to stop.", pipeline_runs.cancel)

    @display(description="Run")
    def number(self, run: PipelineRun) -> str:
        """Its number, by which the process was told of it."""
        return str(run.pk)

    @display(description="State")
    def state_now(self, run: PipelineRun) -> str:
        """Its state in colour."""
        return state(run)

    @display(description="Stage")
    def stage_now(self, run: PipelineRun) -> str:
        """What it is doing, or what went wrong."""
        if run.error:
            return run.error.splitlines()[0][:100]
        if run.state != State.RUNNING:
            return base.NONE
        return f"{run.stage} {run.done:,} of {run.total:,}" if run.total else run.stage

    @display(description="Asked for by")
    def who(self, run: PipelineRun) -> str:
        """A person, the command line or the clock."""
        return run.requested_by

    @display(description="Asked at")
    def asked(self, run: PipelineRun) -> str:
        """When it was asked for."""
        return base.instant(run.requested_at, exact=False)

    @display(description="Began")
    def began(self, run: PipelineRun) -> str:
        """When its process was there."""
        return base.instant(run.started_at, exact=False)

    @display(description="Ended")
    def ended(self, run: PipelineRun) -> str:
        """When that was over."""
        return base.instant(run.finished_at, exact=False)

    @display(description="Took")
    def took(self, run: PipelineRun) -> str:
        """From its beginning to its end, or until now."""
        return duration(run, clock.now())

    @display(description="Rows")
    def rows(self, run: PipelineRun) -> str:
        """How many it read."""
        return intcomma(run.row_count)

    @display(description="Process")
    def place(self, run: PipelineRun) -> str:
        """Where it runs, or ran."""
        return f"{run.pid} on {run.host}" if run.pid else run.host or base.NONE

    @display(description="Heartbeat")
    def beat(self, run: PipelineRun) -> str:
        """Its last sign of life."""
        return base.instant(run.heartbeat_at, exact=False)

    @display(description="Options")
    def said(self, run: PipelineRun) -> str:
        """What it was told; of what it was told about a person no more than a digest."""
        return base.mono(" ".join(words(run)))


def _options_of(number: str | None, job: str) -> dict[str, Any]:
    """What an earlier run of the job was told; nothing of what was said about a person."""
    if not number or not number.isdecimal():
        return {}
    run = PipelineRun.objects.filter(pk=number, job=job).defer("log").first()
    return dict(run.options) if run else {}
