"""django-q2's tables in the console are read-only, and viewing them unpickles nothing."""

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django_q.models import OrmQ, Schedule, Task

from delivery.processes import task_queue
from tests.support import console
from tests.support.hostile import Bomb, signed_by_django_q2, stored

pytestmark = pytest.mark.django_db

KINDS = ("schedule", "ormq", "success", "failure")


@pytest.fixture
def operator() -> Client:
    return console.operator()


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
@pytest.mark.parametrize("kind", KINDS)
def test_viewing_background_tasks_unpickles_nothing(
    kind: str, rows: dict[str, Any], operator: Client, tmp_path: Path
) -> None:
    assert "unfold" in console.look(operator, reverse(f"admin:django_q_{kind}_changelist"))
    console.look(operator, reverse(f"admin:django_q_{kind}_change", args=[rows[kind].pk]))

    assert not (tmp_path / "ran").exists()
    if kind in ("success", "failure"):
        assert rows[kind].__class__.objects.get(pk=rows[kind].pk).result == 0
        assert (tmp_path / "ran").exists()  # the original page of django-q2 would have run it


@pytest.mark.trap("code in a row of the task tables")
@pytest.mark.parametrize("kind", KINDS)
def test_background_tasks_are_read_only(kind: str, rows: dict[str, Any], operator: Client) -> None:
    olaf = User.objects.create_user("olaf", is_staff=True)
    olaf.user_permissions.set(Permission.objects.filter(content_type__app_label="django_q"))
    staff = Client()
    staff.force_login(olaf)
    name = f"admin:django_q_{kind}"
    for client in (operator, staff):
        form = {"name": "mine", "func": "os.system", "schedule_type": "O", "repeats": "-1"}
        when = {"next_run_0": "2020-01-01", "next_run_1": "00:00:00"}
        assert client.post(reverse(f"{name}_add"), form | when).status_code == 403
        row = rows[kind]
        change = reverse(f"{name}_change", args=[row.pk])
        assert client.post(change, form | when).status_code == 403
        assert client.post(reverse(f"{name}_delete", args=[row.pk])).status_code == 403
        chosen = {"action": "resubmit_task", "_selected_action": [row.pk]}
        client.post(reverse(f"{name}_changelist"), chosen)
    assert (Schedule.objects.count(), OrmQ.objects.count(), Task.objects.count()) == (1, 1, 2)
    assert Schedule.objects.get().name == "theirs"


def test_a_failed_task_shows_its_error(operator: Client) -> None:
    row = task(False, result="it broke : <Traceback>")
    page = console.look(operator, reverse("admin:django_q_failure_change", args=[row.pk]))

    assert "it broke : &lt;Traceback&gt;" in page


def test_queued_tasks_are_named_and_marked(operator: Client) -> None:
    OrmQ.objects.all().delete()
    task_queue.add(task_queue.PIPELINE)
    task_queue.ensure_schedules()

    assert task_queue.PIPELINE in console.look(operator, reverse("admin:django_q_ormq_changelist"))
    page = console.look(operator, reverse("admin:django_q_schedule_changelist"))
    assert task_queue.SWEEP in page
