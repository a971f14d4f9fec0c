"""The system page shows the running installation without any secret."""

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from delivery.models import SweepRun
from delivery.processes import task_queue
from tests.support import console

pytestmark = pytest.mark.django_db

PAGE = reverse("admin:system")


def test_the_system_page_shows_processes_and_settings() -> None:
    console.fill()
    task_queue.ensure_schedules()
    SweepRun.objects.filter(name="orphans").update(last_error="OperationalError: away")

    text = console.look(console.operator(), PAGE)

    for told in (settings.VERSION, "HOOKSTATION_DELIVERY_TIMEOUT_MS", "15000", "pump 0 on h"):
        assert told in text
    assert "OperationalError: away" in text
    assert "delivery.cluster.tasks.sweep" in text
    assert "Answers within" in text


def test_the_system_page_hides_secret_values() -> None:
    text = console.look(console.operator(), PAGE)

    assert settings.SECRET_KEY not in text
    row = text[text.index(">SECRET_KEY<") :]
    assert ">set<" in row[: row.index("</tr>")]


def test_a_new_installation_explains_how_to_start_a_worker() -> None:
    text = console.look(console.operator(), PAGE)

    assert "No worker has ever run here" in text
    assert "No sweep has run yet" in text


def test_the_system_page_requires_permission() -> None:
    client = Client()
    client.force_login(User.objects.create_user("nina", is_staff=True))

    assert client.get(PAGE).status_code == 403
    assert console.onlooker().get(PAGE).status_code == 200
    assert Client().get(PAGE).status_code == 302
