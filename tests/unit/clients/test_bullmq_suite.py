"""The tool that runs BullMQ's own tests: what it counts, what it writes, what it asks for."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bullmq import suite
from tests.support.broker import ROOT

Record = Callable[..., suite.Share]


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Return a function that stores results of tests and reads them as the tool does."""
    monkeypatch.setattr(suite, "RESULTS", tmp_path)

    def recorded(*results: tuple[str, str]) -> suite.Share:
        lines = [
            json.dumps({"test": f"test {at}", "state": state, "errors": [error] if error else []})
            for at, (state, error) in enumerate(results, 1)
        ]
        suite.results_of("pause").write_text("\n".join(lines), encoding="utf-8")
        return suite.read_results("pause")

    return recorded


def test_share_has_only_tests_that_passed_or_failed(record: Record) -> None:
    share = record(
        ("passed", ""),
        ("passed", ""),
        ("failed", "AssertionError: expected 3 to be 1"),
        ("failed", "Error: NEEDS REDIS: lpush"),
        ("skipped", ""),
    )

    assert str(share) == "2 of 3 tests pass: 66.7 %"
    assert (share.failed, share.redis, share.skipped) == (["test 3"], 1, 1)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (
            "NotSupported: the job option lifo is not supported by @hookstation/bullmq: the broker",
            "not supported: the job option lifo",
        ),
        (
            "NotSupported: priority 42 is not supported by @hookstation/bullmq: the broker has ten",
            "not supported: priority",
        ),
        (
            "NotSupported: the worker's option metrics is not supported by @hookstation/bullmq: x",
            "not supported: the worker's option metrics",
        ),
        ("Error: Test timed out in 20000ms.", "timed out"),
        ("AssertionError: expected 3 to be 1", "another result"),
    ],
)
def test_failed_test_is_counted_by_its_cause(record: Record, error: str, cause: str) -> None:
    assert record(("failed", error)).causes == {cause: 1}


def test_page_has_each_file_with_its_results_or_the_reason(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = record(("passed", ""), ("failed", "Error: NEEDS REDIS: lpush"))

    page = suite.page("6.2.0", ["bulk", "clean.redis", "pause"], {"pause": share})

    assert "The tests of BullMQ 6.2.0" in page
    assert "**1 of 1 tests pass: 100.0 %.** Files that have not run: 1." in page
    assert "| `bulk` |  |  | not run |" in page
    assert "| `clean.redis` |  |  | all: BullMQ's name for tests of its Redis backend |" in page
    assert "| `pause` | 1 | 0 | 1 that send commands to Redis |" in page
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    monkeypatch.setattr(suite, "PAGE", tmp_path / "page.md")
    assert suite.recorded() == {"pause": 1}
    assert suite.is_worse("pause", {"pause": 2})
    assert not suite.is_worse("pause", {"pause": 1})
    assert not suite.is_worse("pause", {})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([""], "make test-bullmq BULLMQ=PATH"),
        ([str(ROOT / "clients")], "is not a checkout of BullMQ"),
    ],
)
def test_tool_without_a_checkout_says_what_to_give(arguments: list[str], sentence: str) -> None:
    done = subprocess.run([ROOT / "tools/bullmq", *arguments], capture_output=True, text=True)

    assert done.returncode == 2
    assert sentence in done.stderr
