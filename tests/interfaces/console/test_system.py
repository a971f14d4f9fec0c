"""The system page shows the running installation without any secret."""

import pytest
from django.conf import settings
from django.urls import reverse

from delivery.models import SweepRun
from delivery.processes import task_queue
from tests.support import console

pytestmark = pytest.mark.django_db

PAGE = reverse("admin:system")


def test_the_system_page_shows_processes_and_settings_but_no_secret() -> None:
    console.fill()
    task_queue.ensure_schedules()
    SweepRun.objects.filter(name="orphans").update(last_error="OperationalError: away")

    text = console.look(console.operator(), PAGE)

    for part in (
        settings.VERSION,
        "HOOKSTATION_DELIVERY_TIMEOUT_MS",
        "15000",
        "pump 0 on h",
        "agrees with",
    ):
        assert part in text
    assert "OperationalError: away" in text
    assert "delivery.cluster.tasks.sweep" in text
    assert "Answers within" in text
    assert settings.SECRET_KEY not in text
    assert ">set<" in text.partition(">SECRET_KEY<")[2].partition("</tr>")[0]


def test_pumps_are_shown_to_users_who_may_view_them() -> None:
    console.fill()
    client = console.staff("view_sweeprun")

    text = console.look(client, PAGE)

    assert "orphans" in text
    assert "pump 0 on h" not in text
