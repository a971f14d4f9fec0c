"""The system page shows django-q2's tables read-only, and unpickles nothing."""

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django_q.models import OrmQ, Schedule, Task

from broker_site.console.system import ROWS
from delivery.processes import task_queue
from tests.support import console
from tests.support.hostile import Bomb, signed_by_django_q2, stored

pytestmark = pytest.mark.django_db

PAGE = reverse("admin:system")


def task(success: bool, **pickled: Any) -> Task:
    return Task.objects.create(
        id=f"{success:d}" * 32,
        name="lucky",
        func=task_queue.SWEEP,
        started=timezone.now(),
        stopped=timezone.now(),
        success=success,
        **pickled,
    )


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, Any]:
    """One row of each kind, with code in every pickle that django-q2 stores."""
    bomb = Bomb(tmp_path / "ran")
    payload = signed_by_django_q2(bomb, settings.SECRET_KEY)
    pickles = dict.fromkeys(("args", "kwargs", "result"), stored(bomb))
    return {
        "schedule": Schedule.objects.create(name="theirs", func="os.system", args="'true'"),
        "ormq": OrmQ.objects.create(key="hookstation", payload=payload),
        "success": task(True, **pickles),
        "failure": task(False, **pickles),
    }


@pytest.mark.trap("code in a row of the task tables")
def test_viewing_background_tasks_unpickles_nothing(
    rows: dict[str, Any], operator: Client, tmp_path: Path
) -> None:
    text = console.look(operator, PAGE)
    assert all(name in text for name in ("theirs", "unreadable", "lucky"))
    ran = tmp_path / "ran"
    assert not ran.exists()
    for kind in ("success", "failure"):
        assert rows[kind].__class__.objects.get(pk=rows[kind].pk).result == 0
        assert ran.exists()  # the original page of django-q2 would have run it
        ran.unlink()


@pytest.mark.trap("code in a row of the task tables")
def test_background_tasks_are_read_only(rows: dict[str, Any], operator: Client) -> None:
    """The pages of django-q2 that write rows are gone, also for a superuser."""
    for kind, row in rows.items():
        for page in ("changelist", "add"):
            with pytest.raises(NoReverseMatch):
                reverse(f"admin:django_q_{kind}_{page}")
        for page in ("add", f"{row.pk}/change", f"{row.pk}/delete"):
            assert operator.post(f"/admin/django_q/{kind}/{page}/").status_code == 404
        operator.post(PAGE, {"action": "resubmit_task", "_selected_action": [row.pk]})
    assert (Schedule.objects.count(), OrmQ.objects.count(), Task.objects.count()) == (1, 1, 2)
    assert Schedule.objects.get().name == "theirs"


@pytest.mark.parametrize(
    ("permission", "shown"),
    [
        ("view_schedule", {"theirs"}),
        ("view_ormq", {"unreadable"}),
        ("view_success", {">done<"}),
        ("view_failure", {">failed<"}),
    ],
)
def test_each_kind_of_row_needs_its_permission(
    rows: dict[str, Any], permission: str, shown: set[str]
) -> None:
    text = console.look(console.staff("view_sweeprun", permission), PAGE)

    every = ("theirs", "unreadable", ">done<", ">failed<")
    assert {name for name in every if name in text} == shown


def test_a_failed_task_shows_its_error(operator: Client) -> None:
    task(False, result="it broke : <Traceback>")

    assert "it broke : &lt;Traceback&gt;" in console.look(operator, PAGE)


def test_queued_tasks_are_named_and_marked(operator: Client) -> None:
    OrmQ.objects.all().delete()
    task_queue.add(task_queue.PIPELINE)
    task_queue.ensure_schedules()

    text = console.look(operator, PAGE)
    queued = text.partition("queued or running")[2].partition("</section>")[0]
    assert task_queue.PIPELINE in queued
    assert task_queue.SWEEP in text


def test_tasks_beyond_the_first_are_on_further_pages(operator: Client) -> None:
    OrmQ.objects.bulk_create(OrmQ(key=f"cluster-{place:02}") for place in range(ROWS + 1))

    first, second = (console.look(operator, f"{PAGE}?queued={page}") for page in (1, 2))

    assert "cluster-09" in first
    assert "cluster-10" not in first
    assert "cluster-09" not in second
    assert "cluster-10" in second
    assert 'href="?queued=2#queued"' in first
