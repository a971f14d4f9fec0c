"""The jobs that broker and pipeline share have the options of the command line."""

import argparse
from typing import Any

import pytest

from pipeline import cli
from pipeline.contract.jobs import JOBS as OFFERED
from pipeline.contract.jobs import OptionKind
from pipeline.execution.job import Job
from pipeline.jobs import JOBS, erase

NOT_OFFERED = {"help", "csv"}
"""Options of the command line only: the console's form writes no files."""


def actions_of(job: Job) -> dict[str, argparse.Action]:
    parser = argparse.ArgumentParser()
    job.add_options(parser)
    return {action.dest: action for action in parser._actions if action.dest not in NOT_OFFERED}


def test_who_is_erased_stays_out_of_the_books() -> None:
    private = {option.name for option in OFFERED["erase"].options if option.is_private}
    assert private == set(erase.SUBJECT_OPTIONS)


def test_the_console_offers_the_jobs_that_there_are() -> None:
    assert set(OFFERED) == set(JOBS)
    assert all(OFFERED[name].name == name == JOBS[name].name for name in JOBS)


@pytest.mark.parametrize("name", sorted(JOBS))
def test_every_job_is_offered_with_its_options(name: str) -> None:
    known = actions_of(JOBS[name])
    offered = {option.name: option for option in OFFERED[name].options}

    assert set(offered) == set(known)
    assert OFFERED[name].private == set(JOBS[name].private)
    assert OFFERED[name].summary == JOBS[name].summary
    for option in offered.values():
        action = known[option.name]
        assert (option.kind is OptionKind.FLAG) == (action.nargs == 0), option.name
        if option.kind is OptionKind.NUMBER:
            assert callable(action.type)
            assert isinstance(action.type("3"), int | float), option.name
        assert option.required == bool(action.required), option.name
        assert option.several == isinstance(action, argparse._AppendAction), option.name
        assert option.choices == tuple(action.choices or ()), option.name


@pytest.mark.parametrize(
    "options",
    [{"dry_run": True, "steps": 4, "name": ["-x", "a b"], "fail": None}, {}],
)
def test_stored_options_are_read_back_as_they_were(options: dict[str, Any]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--name", action="append")
    parser.add_argument("--fail")
    read = vars(parser.parse_args(cli.to_arguments(options)))

    kept = {name: value for name, value in options.items() if value is not None}
    assert {name: value for name, value in read.items() if value not in (None, False)} == kept
