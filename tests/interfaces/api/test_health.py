"""/livez, /readyz and /metrics, as load balancers, operators and Prometheus see them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from broker_site.observability import probes
from channels_app import metrics as accepting
from channels_app.core.encryption import generate_key
from channels_app.database import clock
from channels_app.ingest import storage
from channels_app.models import WriteProbe
from delivery import metrics as delivering
from delivery.models import ConsumerHealth, Counter, PumpSlot
from tests.support.api import Api
from tests.support.factories import (
    ApiKeyFactory,
    ChannelFactory,
    ConsumerFactory,
    DeliveryFactory,
    MessageFactory,
)
from tests.support.keys import host

pytestmark = pytest.mark.django_db

NAMES = {
    "hookstation_messages_accepted_total",
    "hookstation_attempts_total",
    "hookstation_deliveries_total",
    "hookstation_delivery_latency_seconds",
    "hookstation_attempt_duration_seconds",
    "hookstation_queue_depth",
    "hookstation_oldest_due_seconds",
    "hookstation_timeline_lateness_seconds",
    "hookstation_dead_letters",
    "hookstation_publish_duplicates_total",
    "hookstation_publish_throttled_total",
    "hookstation_sweep_rows_total",
    "hookstation_pumps",
    "hookstation_reconciliation_gap",
}
"""Metrics that api.md documents; dashboards and alerts of users depend on them."""


def scrape(client: Client) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return samples by name and labels."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(answer.content.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@pytest.mark.trap("public metrics")
def test_without_a_token_metrics_are_only_for_this_machine(client: Client) -> None:
    requests: list[tuple[str, dict[str, str], int]] = [
        ("127.0.0.1", {}, 200),
        ("::1", {}, 200),
        ("::ffff:127.0.0.1", {}, 200),
        ("10.0.0.7", {}, 401),
        ("203.0.113.9", {}, 401),
        ("", {}, 401),
        # A proxy on this machine forwards the request of another client.
        ("127.0.0.1", {"X-Forwarded-For": "203.0.113.9"}, 401),
        ("127.0.0.1", {"X-Forwarded-For": "127.0.0.1"}, 401),
        ("127.0.0.1", {"Forwarded": "for=203.0.113.9"}, 401),
        ("127.0.0.1", {"X-Real-IP": "203.0.113.9"}, 401),
        ("127.0.0.1", {"Via": "1.1 proxy"}, 401),
        # DNS rebinding: a page on another site resolves its own name to this machine.
        ("127.0.0.1", {"Host": "evil.example:8000"}, 400),
        ("127.0.0.1", {"Host": "localhost:8000"}, 200),
        ("127.0.0.1", {"Host": "[::1]:8000"}, 200),
        ("10.0.0.7", {"Authorization": "Bearer "}, 401),
    ]
    for address, headers, status in requests:
        answer = client.get("/metrics", headers=headers, REMOTE_ADDR=address)
        assert answer.status_code == status, (address, headers)
        assert (b"hookstation_" in answer.content) == (status == 200)


def test_an_unknown_host_header_gets_no_metrics(rf: RequestFactory) -> None:
    """The fast path does not check the Host header before."""
    for name in ("[", "]", "", "[::1", "a b", "evil.example"):
        assert probes.metrics(rf.get("/metrics", HTTP_HOST=name)).status_code == 401, name


def test_behind_a_public_name_metrics_need_a_token(client: Client, settings: Any) -> None:
    settings.PUBLIC_URL = "https://hooks.example.com"
    assert client.get("/metrics").status_code == 401


def test_metrics_require_the_token(client: Client, settings: Any) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, metrics_token="the-token")
    for header, status in {
        "Bearer the-token": 200,
        "bearer the-token": 200,
        "": 401,
        "Bearer": 401,
        "Bearer the-toke": 401,
        "Basic the-token": 401,
        "the-token": 401,
    }.items():
        headers = {"Authorization": header} if header else {}
        for address in ("127.0.0.1", "203.0.113.9"):
            answer = client.get("/metrics", headers=headers, REMOTE_ADDR=address)
            assert answer.status_code == status, header


def ready(client: Client, query: str = "") -> tuple[int, dict[str, Any]]:
    """Return status and body of /readyz."""
    answer = client.get(f"/readyz{query}")
    return answer.status_code, json.loads(answer.content)


def failed(body: dict[str, Any]) -> list[str]:
    """Return the names of the checks that did not pass."""
    return [name for name, check in body["checks"].items() if not check["ok"]]


def a_living_pump(**values: Any) -> PumpSlot:
    """Create a pump whose heartbeat stays recent, however slow the machine is."""
    now = timezone.now() + timedelta(hours=1)
    defaults = {
        **{"cluster": "c", "ordinal": 0, "generation": 1, "host": "h", "pid": 1},
        **{"started_at": now, "heartbeat_at": now},
    }
    return PumpSlot.objects.create(**(defaults | values))


def overdue(**values: Any) -> Any:
    """Create a delivery that has been due for two minutes."""
    return DeliveryFactory.create(due_at=timezone.now() - timedelta(minutes=2), **values)


class Gone:
    """A database that does not respond."""

    def __call__(self, execute: Any, sql: str, *args: Any) -> Any:
        raise OperationalError(2003, "Can't connect to server on 'db.internal' for 'hooker'")


@pytest.mark.seed("S4-46")
@pytest.mark.trap("missing metrics")
def test_every_documented_metric_exists_from_the_start(client: Client) -> None:
    for outcome in (delivering.ATTEMPTS, delivering.DELIVERIES, delivering.SWEEP_ROWS):
        outcome.labels("x")

    names = set(scrape(client))

    histograms = {name for name in NAMES if f"{name}_bucket" in names}
    assert NAMES - names - histograms == set()


def test_counters_come_out_once_and_with_one_total(client: Client) -> None:
    before = scrape(client)["hookstation_messages_accepted_total"][()]
    accepting.ACCEPTED.inc(3)

    after = scrape(client)

    assert after["hookstation_messages_accepted_total"][()] == before + 3
    assert not [name for name in after if "_total_total" in name and "hookstation" in name]


def test_depths_come_from_the_tables(client: Client) -> None:
    consumer = ConsumerFactory.create()
    DeliveryFactory.create_batch(2, consumer=consumer, dead=True)
    DeliveryFactory.create(consumer=consumer, delivered=True)
    a_living_pump()

    found = scrape(client)

    assert found["hookstation_queue_depth"][(("state", "dead"),)] == 2
    assert found["hookstation_queue_depth"][(("state", "delivered"),)] == 1
    assert found["hookstation_queue_depth"][(("state", "queued"),)] == 0
    assert found["hookstation_dead_letters"][()] == 2
    assert found["hookstation_pumps"][()] == 1
    assert found["hookstation_reconciliation_gap"][()] == 0
    Counter.add({(consumer.id, "dead"): -1}, 3)  # a lost count
    assert scrape(client)["hookstation_reconciliation_gap"][()] == 1


@pytest.mark.seed("S4-41", "S4-R9")
def test_upcoming_deliveries_are_a_metric(client: Client) -> None:
    consumer = ConsumerFactory.create()
    for seconds, number in ((30, 2), (200, 3), (3000, 4), (7200, 5)):
        due_at = timezone.now() + timedelta(seconds=seconds)
        MessageFactory.create_batch(number, channel=consumer.channel, due_at=due_at)

    upcoming = scrape(client)["hookstation_timeline_upcoming"]

    windows = ("1m", "5m", "1h", "24h")
    assert [upcoming[(("window", window),)] for window in windows] == [2, 5, 9, 14]
    assert abs(scrape(client)["hookstation_clock_offset_seconds"][()]) < 60


def test_deliveries_that_cannot_go_do_not_make_the_broker_late(client: Client) -> None:
    held: tuple[dict[str, Any], ...] = (
        *({name: True} for name in ("paused", "disabled", "retired", "pull", "channel__paused")),
        {"rate_per_second": 1.0},
    )
    for values in held:
        overdue(consumer=ConsumerFactory.create(**values))
    tomorrow = timezone.now() + timedelta(days=1)
    for values in ({"circuit": "open"}, {"slow_until": tomorrow}):
        ConsumerHealth.objects.create(consumer=overdue().consumer, **values)
    assert scrape(client)["hookstation_oldest_due_seconds"][()] == 0


def test_a_fully_occupied_consumer_does_not_make_the_broker_late(client: Client) -> None:
    consumer = ConsumerFactory.create(max_in_flight=1)
    overdue(consumer=consumer)
    assert scrape(client)["hookstation_oldest_due_seconds"][()] == pytest.approx(120, abs=60)

    DeliveryFactory.create(consumer=consumer, in_flight=True)

    assert scrape(client)["hookstation_oldest_due_seconds"][()] == 0


def test_the_oldest_due_row_costs_a_few_queries_whatever_the_history(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    consumer = overdue().consumer
    DeliveryFactory.create_batch(20, consumer=consumer, delivered=True)
    scrape(client)

    clock.sync()  # on a slow machine the clock would query the database once more
    with django_assert_max_num_queries(19):
        scrape(client)


def test_openmetrics_is_returned_on_request(client: Client) -> None:
    answer = client.get("/metrics", headers={"Accept": "application/openmetrics-text"})

    assert answer["Content-Type"].startswith("application/openmetrics-text")
    assert answer.content.endswith(b"# EOF\n")


def test_a_responding_process_is_live(client: Client) -> None:
    with connection.execute_wrapper(Gone()):
        answer = client.get("/livez")

    assert (answer.status_code, json.loads(answer.content)) == (200, {"status": "alive"})


def test_readiness_passes_when_all_checks_pass_or_are_skipped(client: Client) -> None:
    checks = ["database", "migrations", "storage", "disk", "keys"]
    status, body = ready(client, "?exclude=pumps&exclude=oldest_due")
    assert (status, list(body["checks"])) == (200, checks)
    a_living_pump()

    status, body = ready(client)

    assert (status, body["status"]) == (200, "ready")
    assert list(body["checks"]) == [*checks, "pumps", "oldest_due"]
    assert all(check["ok"] for check in body["checks"].values())


def test_readiness_without_a_pump_names_a_remedy(client: Client) -> None:
    a_living_pump(heartbeat_at=timezone.now() - timedelta(minutes=1))

    status, body = ready(client)

    assert (status, body["status"]) == (503, "not ready")
    assert body["checks"]["pumps"]["ok"] is False
    assert "manage.py broker" in body["checks"]["pumps"]["hint"]


def test_a_stuck_delivery_is_not_ready(client: Client) -> None:
    a_living_pump()
    overdue()

    status, body = ready(client)

    assert (status, failed(body)) == (503, ["oldest_due"])


@pytest.mark.trap("a start with the wrong key")
def test_without_the_active_encryption_key_it_is_not_ready(client: Client) -> None:
    with host(generate_key()):
        ConsumerFactory.create()
    a_living_pump()

    status, body = ready(client)

    assert (status, failed(body)) == (503, ["keys"])
    assert scrape(client)["hookstation_processes_without_key"] == {(): 1}


def test_tables_older_than_the_code_are_not_ready(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_living_pump()
    monkeypatch.setitem(probes.CHECKS, "migrations", probes._Migrations())
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'delivery'")

    status, body = ready(client)

    assert status == 503
    assert body["checks"]["migrations"]["hint"] == "Run `python manage.py migrate`."


def test_an_unavailable_database_is_reported_without_secrets(client: Client) -> None:
    with connection.execute_wrapper(Gone()):
        status, body = ready(client)

    assert status == 503
    assert not any(check["ok"] for check in body["checks"].values())
    assert "DATABASE_URL" in body["checks"]["database"]["hint"]
    assert "Not checked" in body["checks"]["pumps"]["detail"]
    assert "db.internal" not in json.dumps(body)
    assert "hooker" not in json.dumps(body)


def test_metrics_answer_without_a_database(client: Client) -> None:
    assert scrape(client)["hookstation_database_up"][()] == 1

    with connection.execute_wrapper(Gone()):
        found = scrape(client)

    assert found["hookstation_database_up"][()] == 0
    assert "hookstation_messages_accepted_total" in found
    assert "hookstation_queue_depth" not in found


def test_health_endpoints_refuse_writes(client: Client) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        assert client.post(path).status_code == 405, path


@contextmanager
def read_only() -> Iterator[None]:
    """A database that can be read but not written."""
    statement = {
        "sqlite": ("PRAGMA query_only = ON", "PRAGMA query_only = OFF"),
        "mysql": ("SET SESSION TRANSACTION READ ONLY", "SET SESSION TRANSACTION READ WRITE"),
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(statement[0])
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(statement[1])


@pytest.mark.trap("ready, but cannot store")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("query", ["?exclude=pumps", "?exclude=pumps&exclude=oldest_due"])
def test_it_is_not_ready_while_no_row_can_be_written(query: str, client: Client) -> None:
    with read_only():
        storage.forget()
        status, body = ready(client, query)
        assert (status, failed(body)) == (503, ["storage"])
    storage.forget()
    assert ready(client, query)[0] == 200


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("interval_s", "count"), [(600.0, 1), (-1.0, 8)])
def test_readiness_writes_rows_at_a_bounded_rate(
    client: Client, monkeypatch: pytest.MonkeyPatch, interval_s: float, count: int
) -> None:
    monkeypatch.setattr(storage, "PROBE_S", interval_s)
    with CaptureQueriesContext(connection) as queries:
        for _ in range(8):
            assert ready(client, "?exclude=pumps")[0] == 200
    written = [it["sql"] for it in queries if "writeprobe" in it["sql"] and "INSERT" in it["sql"]]
    assert len(written) == count
    assert WriteProbe.objects.count() == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "mysql", reason="a limit that SQLite has")
def test_a_full_database_is_not_ready_and_named(client: Client) -> None:
    ChannelFactory.create(slug="orders")
    producer = Api(ApiKeyFactory.create())
    with connection.cursor() as cursor:
        cursor.execute("VACUUM")  # frees the space that other tests left
        cursor.execute("PRAGMA max_page_count = 1")  # raised to the current size
        try:
            storage.forget()
            answer = producer.post("channels/orders/messages", b"x" * 1_000_000)
            assert (answer.status, answer.json["code"]) == (507, "storage_full")
            assert answer.header("Retry-After")
            assert not ready(client, "?exclude=pumps")[1]["checks"]["storage"]["ok"]
        finally:
            cursor.execute("PRAGMA max_page_count = 1073741823")
    storage.forget()
    assert producer.post("channels/orders/messages", b"x" * 1_000_000).status == 202
    assert ready(client, "?exclude=pumps")[0] == 200
