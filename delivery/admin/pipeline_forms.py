"""Provide the form of a pipeline run, with a field for each option of its job and a reason."""

from collections.abc import Mapping
from typing import Any

from django import forms
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from channels_app.steps.switch_consumer import MAX_REASON_LENGTH
from pipeline.contract.jobs import DRY_RUN, Job, Kind, Option

SURE = "sure"


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
            if given and option.name in given and option.kind is not Kind.FLAG
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
        self.fields["reason"] = forms.CharField(
            required=False,
            max_length=MAX_REASON_LENGTH,
            widget=UnfoldAdminTextInputWidget,
            help_text="For the audit log.",
        )

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
        found: dict[str, Any] = {}
        for option in self.job.options:
            value = self.cleaned_data.get(option.name)
            if option.several:
                value = [line.strip() for line in (value or "").splitlines() if line.strip()]
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if value not in (None, "", False, []):
                found[option.name] = value
        return found


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
    if option.kind is Kind.FLAG:
        return forms.BooleanField(widget=UnfoldBooleanSwitchWidget, **common | {"required": False})
    if option.kind is Kind.NUMBER:
        return forms.FloatField(min_value=0, widget=UnfoldAdminIntegerFieldWidget, **common)
    if option.several:
        return forms.CharField(widget=UnfoldAdminTextareaWidget({"rows": 3}), **common)
    return forms.CharField(widget=UnfoldAdminTextInputWidget, **common)
