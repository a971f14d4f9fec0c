"""Define the admin pages of the pipeline: its jobs, runs, forms and schedules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.humanize.templatetags.humanize import intcomma
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.text import capfirst
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from channels_app.access.principal import Principal
from channels_app.admin import base
from channels_app.admin.base import action, dialog, display
from channels_app.admin.filters import ChoicesDropdownFilter
from channels_app.core.errors import BrokerError
from channels_app.core.program import typed
from channels_app.database import clock
from channels_app.registry.consumers import MAX_REASON_LENGTH
from delivery.admin.replays import Live, LivePage, button
from delivery.conf import conf
from delivery.maintenance import pipeline_runs
from delivery.models import PipelineRun, PipelineSchedule
from pipeline.contract.jobs import DRY_RUN, JOBS, Job, Option, OptionKind

SURE = "sure"
MAY_PLAN = "delivery.change_pipelineschedule"
State = PipelineRun.State
TONE = {
    State.QUEUED: "wait",
    State.RUNNING: "busy",
    State.FINISHED: "good",
    State.FAILED: "bad",
    State.CANCELLED: "calm",
}
HEADINGS = {State.FINISHED: "Done", State.FAILED: "Failed", State.CANCELLED: "Stopped"}
PERIODS = ((24 * 60, "day"), (60, "hour"), (1, "minute"))
Mode = PipelineSchedule.Mode
MAX_MINUTES = 366 * 24 * 60
"""Maximum interval in minutes."""
ENDED = (State.FINISHED, State.FAILED, State.CANCELLED)
STOP = dialog("Stop this run?", "What it wrote is intact. The next run continues.", "Stop it")


def reason_field() -> forms.CharField:
    """The reason for the audit log."""
    return forms.CharField(
        required=False,
        max_length=MAX_REASON_LENGTH,
        widget=UnfoldAdminTextInputWidget,
        help_text="For the audit log.",
    )


class JobForm(forms.Form):
    """The options of a job. Empty fields use the job's defaults."""

    def __init__(
        self,
        job: Job,
        data: Any = None,
        given: Mapping[str, Any] | None = None,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        """``given`` are values from the URL; ``before`` are options of an earlier run."""
        initial = {
            option.name: given[option.name]
            for option in job.options
            # A link must not set a flag, since flags are confirmations.
            if given and option.name in given and option.kind is not OptionKind.FLAG
        }
        is_dry = job.is_final or bool(before and before.get(DRY_RUN.name))
        asked = _again(job, before or {}) | initial
        super().__init__(data, initial={**asked, DRY_RUN.name: is_dry})
        self.job = job
        for option in job.options:
            self.fields[option.name] = _field(option)
        if job.is_final:
            self.fields[SURE] = forms.BooleanField(
                label="Do it: it cannot be undone",
                required=False,
                widget=UnfoldBooleanSwitchWidget,
            )
        self.fields["reason"] = reason_field()

    def clean(self) -> dict[str, Any]:
        """Check the confirmations that irreversible jobs require, and that a person is named."""
        values = self.cleaned_data
        private = self.job.private
        if private and not any((values.get(name) or "").strip() for name in private):
            raise forms.ValidationError("Fill in at least one of the keys.")
        if self.job.is_final and not values.get(DRY_RUN.name) and not values.get(SURE):
            self.add_error(SURE, "Confirm it here, or choose a dry run.")
        return values

    def options(self) -> dict[str, Any]:
        """Return the options in the form of the command line."""
        options: dict[str, Any] = {}
        for option in self.job.options:
            value = self.cleaned_data.get(option.name)
            if option.several:
                value = [line.strip() for line in (value or "").splitlines() if line.strip()]
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if value not in (None, "", False, []):
                options[option.name] = value
        return options


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job."""

    job: Job
    last: PipelineRun | None
    state: str
    """State of the last run, in colour."""
    done: PipelineRun | None
    """The last run that finished."""
    took: str
    """Duration of that run."""
    rhythm: str
    has_schedule: bool


def job_statuses() -> list[JobStatus]:
    """Return each job with its last run, its last success and its schedule."""
    last, done = pipeline_runs.latest(), pipeline_runs.latest(State.FINISHED)
    plans = PipelineSchedule.objects.in_bulk()
    now = clock.now()
    return [
        JobStatus(
            job,
            newest := last.get(name),
            state(newest) if newest else "",
            good := done.get(name),
            duration(good, now) if good else "",
            _rhythm(job, plans.get(name)),
            name in plans,
        )
        for name, job in JOBS.items()
    ]


def shown(run: PipelineRun) -> Live:
    """Return the live part of a run's page."""
    is_over = run.state not in (State.QUEUED, State.RUNNING)
    took = duration(run, clock.now())
    note = ""
    if run.state == State.RUNNING and run.total:
        note = f"{run.done:,} of {run.total:,}"
    elif is_over and run.started_at:
        note = f"in {took}"
    if run.options.get(DRY_RUN.name):
        note += ", a dry run: nothing is written" if note else "a dry run: nothing is written"
    facts = [("Took", took), ("Rows read", run.row_count)] if run.started_at else []
    return Live(
        _heading(run),
        note,
        min(run.done, run.total),
        0 if is_over else run.total,
        error=run.error,
        facts=(*facts, *(_fact(name, value) for name, value in run.result.items())),
        hint=_hint(run),
        log=run.log,
    )


def words(run: PipelineRun) -> list[str]:
    """Return a run's options as a command line, without those that identify a person."""
    job = JOBS.get(run.job)
    return job.command_line(run.options) if job else [str(run.options)] if run.options else []


def state(run: PipelineRun) -> str:
    """Return a run's state, in colour."""
    name = "stopping" if run.cancel_at and run.state == State.RUNNING else run.state
    label = base.label(name, TONE[State(run.state)])
    if not run.options.get(DRY_RUN.name):
        return label
    return format_html("{} {}", label, base.label("dry run"))


def duration(run: PipelineRun, now: datetime) -> str:
    """Return the time from beginning to end, or until now."""
    if run.started_at is None:
        return base.NONE
    span = clock.elapsed(run.started_at, run.finished_at or now)
    if span < timedelta(minutes=1):
        return f"{span.total_seconds():.1f} s"
    return str(timedelta(seconds=int(span.total_seconds())))


def is_on(row: PipelineSchedule) -> bool:
    """Whether this installation runs the job by its schedule."""
    return pipeline_runs.is_on(row, has_lake=bool(conf().lake))


def period(minutes: int) -> str:
    """Return an interval in words: ``hour``, ``6 hours``, ``90 minutes``."""
    for size, name in PERIODS:
        if minutes % size == 0:
            count = minutes // size
            return name if count == 1 else f"{count} {name}s"
    raise AssertionError("unreachable")


class Rhythm(forms.Form):
    """The interval of a job."""

    mode = forms.ChoiceField(
        label="Runs automatically", choices=Mode.choices, widget=UnfoldAdminSelectWidget
    )
    every_minutes = forms.IntegerField(
        label="Interval in minutes",
        min_value=1,
        max_value=MAX_MINUTES,
        widget=UnfoldAdminIntegerFieldWidget,
    )
    reason = reason_field()


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
            "may_plan": request.user.has_perm(MAY_PLAN),
            "lake": conf().lake,
        }

    def live(self, row: PipelineRun) -> Live:
        """Its stage, progress, result and log."""
        return shown(row)

    def get_urls(self) -> list[URLPattern]:
        """Add the URLs of each job's forms."""
        views = {"start": self.start, "schedule": self.schedule}
        own = [
            path(
                f"{name}/<slug:job>/",
                self.admin_site.admin_view(view),
                name=f"delivery_pipelinerun_{name}",
            )
            for name, view in views.items()
        ]
        return [*own, *super().get_urls()]

    def start(self, request: HttpRequest, job: str) -> HttpResponse:
        """Show the form of a job, start the run and redirect to its page."""
        base.require(self.has_operate_permission(request))
        chosen_job = JOBS.get(job)
        if chosen_job is None:
            raise Http404("There is no such job.")
        data = request.POST if request.method == "POST" else None
        form = JobForm(
            chosen_job, data, request.GET.dict(), _options_of(request.GET.get("again"), job)
        )

        def ask(principal: Principal) -> str:
            run = pipeline_runs.ask(job, form.options(), principal, now=clock.now())
            pipeline_runs.wake_up()
            return self.page_of(run.pk)

        words = f"Start {chosen_job.title.lower()}"
        more = {"icon": "play_arrow", "is_installed": pipeline_runs.is_installed()}
        return self._answer(
            request, chosen_job, form, ask, more | {"title": words, "button": words}
        )

    def schedule(self, request: HttpRequest, job: str) -> HttpResponse:
        """Show the schedule of a job, change it and redirect to the jobs."""
        base.require(bool(request.user.has_perm(MAY_PLAN)))
        row = PipelineSchedule.objects.filter(pk=job).first()
        if row is None or job not in JOBS:
            raise Http404("There is no such schedule.")
        data = request.POST if request.method == "POST" else None
        form = Rhythm(data, initial={"mode": row.mode, "every_minutes": row.every_minutes})

        def plan(principal: Principal) -> str:
            values = form.cleaned_data
            pipeline_runs.plan(job, values["mode"], values["every_minutes"], principal)
            messages.success(request, "The schedule is changed.")
            return reverse("admin:delivery_pipelinerun_changelist")

        more = {
            "title": f"Schedule of {JOBS[job].title.lower()}",
            "hint": "Each run starts its own Spark: a minute of two cores, and 1 GB of memory.",
            "icon": "schedule",
            "button": "Change the schedule",
            "is_installed": True,
        }
        return self._answer(request, JOBS[job], form, plan, more)

    def _answer(
        self,
        request: HttpRequest,
        job: Job,
        form: Any,
        step: Callable[[Principal], str],
        context: dict[str, Any],
    ) -> HttpResponse:
        """Run the step for a valid form and redirect to its page, else show the form."""
        if request.method == "POST" and form.is_valid():
            try:
                return redirect(step(base.principal(request, form.cleaned_data["reason"])))
            except BrokerError as error:
                context["refused"] = error.detail
        page = self.admin_site.each_context(request) | {"opts": self.opts, "job": job, "form": form}
        return TemplateResponse(request, "delivery/start.html", page | context)

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


def _again(job: Job, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's options as form values, without those that identify a person."""
    return {
        name: "\n".join(value) if isinstance(value, list) else value
        for name, value in before.items()
        if name not in job.private
    }


def _field(option: Option) -> forms.Field:
    common: dict[str, Any] = {
        "label": option.title,
        "help_text": option.help,
        "required": option.required,
    }
    if option.choices:
        choices = [("", "Any"), *((choice, choice) for choice in option.choices)]
        return forms.ChoiceField(choices=choices, widget=UnfoldAdminSelectWidget, **common)
    if option.kind is OptionKind.FLAG:
        return forms.BooleanField(widget=UnfoldBooleanSwitchWidget, **common | {"required": False})
    if option.kind is OptionKind.NUMBER:
        return forms.FloatField(min_value=0, widget=UnfoldAdminIntegerFieldWidget, **common)
    if option.several:
        return forms.CharField(widget=UnfoldAdminTextareaWidget({"rows": 3}), **common)
    return forms.CharField(widget=UnfoldAdminTextInputWidget, **common)


def _rhythm(job: Job, row: PipelineSchedule | None) -> str:
    """Describe when a job runs: its interval, its next run and its last scheduled one."""
    if not job.every_minutes:
        return "on request"
    if row is None:
        return "not scheduled"
    every = f"every {period(row.every_minutes)}"
    last = format_html(", last {}", base.instant(row.last_at, exact=False)) if row.last_at else ""
    if not is_on(row):
        off = base.label("waits for a lake" if row.mode == Mode.LAKE else "off")
        return format_html("{} {}{}", off, every, last)
    at = pipeline_runs.next_at(row)
    following = base.instant(at, exact=False) if at else "within a minute"
    return format_html("{}, next {}{}", every, following, last)


def _heading(run: PipelineRun) -> str:
    if run.state == State.QUEUED:
        return "Its process is starting" if run.host else "Queued"
    if run.state == State.RUNNING:
        return "Stopping" if run.cancel_at else capfirst(run.stage or "beginning")
    return HEADINGS[State(run.state)]


def _hint(run: PipelineRun) -> str:
    """Explain what a queued run waits for, or why a run without a log ended."""
    if run.state == State.CANCELLED and not run.started_at:
        return "It was stopped before it started."
    if run.state == State.FAILED:
        where = f"pipeline/{run.job}.log in the data folder of its host"
        log = "" if run.log else f" It left no log here. Its output is in {where}."
        return f"What it wrote is intact, and you can start it again.{log}"
    if run.state != State.QUEUED or run.host:
        return ""
    condition = " and no other job runs" if run.requested_by == pipeline_runs.SCHEDULE else ""
    return (
        f"A worker ({typed('manage.py broker')}) starts it within a minute, when no other run "
        f"of this job is in progress{condition}."
    )


def _fact(name: str, value: Any) -> tuple[str, Any]:
    """Return a line of a run's result for people."""
    title = capfirst(name.replace("_", " "))
    if value is None:
        return title, base.NONE
    if name.startswith("bytes") and isinstance(value, int):
        return title, filesizeformat(value)
    if isinstance(value, str):
        try:
            return title, f"{datetime.fromisoformat(value):%Y-%m-%d %H:%M}"
        except ValueError:
            return title, value
    return title, value


def _options_of(number: str | None, job: str) -> dict[str, Any]:
    """Return options of an earlier run of the job, without those that identify a person."""
    if not number or not number.isdecimal():
        return {}
    run = PipelineRun.objects.filter(pk=number, job=job).defer("log").first()
    return dict(run.options) if run else {}
