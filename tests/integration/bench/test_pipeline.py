"""Benchmarks of the data pipeline: the generated month of data, and the results page."""

from pathlib import Path

import pytest
from django.db.models import Count, F

from bench.adapters import BenchError, no_progress
from bench.internal import rows
from bench.internal.history import Month
from bench.machine import Machine
from bench.pipeline.__main__ import markdown
from bench.pipeline.queries import QUESTIONS
from bench.pipeline.session import Answer, Cost, Findings, Latency
from channels_app.models import Message, MessageBody
from delivery.maintenance import counters
from delivery.models import Attempt, Counter, Delivery
from tests.support.pumping import recounted

MACHINE = Machine("A processor", 2, 8.0, "Linux 6", "3.11.7", 35.0, 0.1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.mariadb
def test_the_month_is_what_the_broker_would_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CHUNK", 70)
    month = Month.of(400)
    rows.in_chunks(month.insert, 0, 100, no_progress)
    rows.in_chunks(Month.of(400).insert, 100, 400, no_progress)

    assert Message.objects.count() == MessageBody.objects.count() == 400
    assert (Delivery.objects.count(), Attempt.objects.count()) == (800, 1000)
    assert Counter.totals() == recounted()
    assert counters.gap() == 0
    assert Counter.totals()["dead"] == 8
    counted = Delivery.objects.annotate(found=Count("attempts"))
    assert not counted.exclude(found=F("attempt_count")).exists()
    assert not Delivery.objects.filter(state="dead", outcome="delivered").exists()
    last = Attempt.objects.filter(number=F("delivery__attempt_count"))
    assert last.filter(outcome=F("delivery__outcome")).count() == 800


def findings() -> Findings:
    small = Cost(20.0, 4.0, 100 << 20, 900 << 20, 800 << 20)
    large = Cost(80.0, 18.0, 100 << 20, 1000 << 20, 800 << 20)
    one = Answer("usage", 1_000_000, 2_200_000, small)
    other = Answer("usage", 5_000_000, 11_000_000, large, 240.0, 230.0, Cost(9.0))
    latencies = [
        Latency("nothing else", 5.0, 9.0, 20.0),
        Latency("pruning", 6.0, 12.0, 100.0, 500_000),
    ]
    at = "2026-01-01T00:00:00+00:00"
    return Findings(at, MACHINE, "MariaDB settings", [one, other], latencies, 1_000_000)


def test_the_page_shows_what_was_found_and_failures_in_their_place() -> None:
    found = findings()
    text = markdown(found)

    assert "With 5,000,000 attempts:" in text
    usage = "| usage of 30 days, with latencies | 11,000,000 | 80.0 s | 137,500 | 240.0 s | 3.00 |"
    assert usage in text
    assert "| 9.0 s | 18.0 s | 230.0 s |" in text
    # Five times as many attempts take four times as long.
    assert "| 20.0 | 80.0 | 0.80 | 100 / 100 | 900 / 1,000 | 800 / 800 |" in text
    assert "| pruning | 6.0 ms | 12.0 ms | 100 | 5,000 |" in text
    assert "failed" not in text

    found.answers[1].failures.append("usage ended with 1: no")
    found.failures.append("The broker did not start.")
    text = markdown(found)
    assert "**failed:** usage ended with 1: no" in text
    assert "**failed:** The broker did not start." in text


def test_findings_are_kept_and_read_back(tmp_path: Path) -> None:
    kept = findings().save(tmp_path)
    assert Findings.load(kept) == findings()
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(BenchError, match=r"other\.json"):
        Findings.load(tmp_path / "other.json")


def test_each_question_is_asked_of_everybody() -> None:
    for question in QUESTIONS:
        assert question.mariadb
        assert question.duckdb
        assert question.columns
