"""Provide a template tag with the state of a pipeline job's last run."""

from typing import Any

from django.template import Context, Library

from delivery.models import PipelineRun

register = Library()
State = PipelineRun.State
VIEW, OPERATE = "delivery.view_pipelinerun", "delivery.change_pipelinerun"
MAX_LENGTH = 300
"""Maximum characters of an error on another page; the run's own page shows all of it."""


@register.inclusion_tag("delivery/last_run.html", takes_context=True)
def last_run(context: Context, job: str) -> dict[str, Any]:
    """Describe a failed newest run with its error and remedy, or a run in progress."""
    user = context["request"].user
    runs = PipelineRun.objects.filter(job=job).order_by("-id").defer("log")
    run = runs.first()
    if run is None or not user.has_perm(VIEW):
        return {"run": None}
    is_failed = run.state == State.FAILED
    return {
        "run": run,
        "is_failed": is_failed,
        "is_open": run.state in (State.QUEUED, State.RUNNING),
        "error": run.error.partition("\n")[0][:MAX_LENGTH],
        "done": runs.filter(state=State.FINISHED).first() if is_failed else None,
        "may_start": user.has_perm(OPERATE),
    }
