"""The Celery-compatible client without a broker: refusals, mappings and composition."""

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hookstation_client.celery import (
    Celery,
    Task,
    canvas,
    chain,
    chord,
    exceptions,
    group,
    result,
    schedules,
    shared_task,
    signature,
)
from hookstation_client.celery.exceptions import ImproperlyConfigured, NotCovered, Reject, Retry
from hookstation_client.celery.protocol import TaskMessage, decode, encode
from hookstation_client.celery.worker import RateLimit


@pytest.fixture
def app() -> Iterator[Celery]:
    made = Celery("shop", broker="redis://127.0.0.1/0", backend="redis://127.0.0.1/1")
    yield made
    canvas._apps.remove(made)


@pytest.fixture
def eager(app: Celery) -> Celery:
    app.conf.task_always_eager = True
    return app


@pytest.fixture
def add(app: Celery) -> Task:
    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    return add


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda app, add: app.control,
        lambda app, add: app.conf.update(worker_max_tasks_per_child=1),
        lambda app, add: app.conf.update(task_serializer="pickle"),
        lambda app, add: app.conf.update(broker_transport_options={"fanout_prefix": True}),
        lambda app, add: app.task(time_limit=3)(print),
        lambda app, add: app.task(reject_on_worker_lost=False)(print),
        lambda app, add: add.apply_async((1, 2), routing_key="x"),
        lambda app, add: add.apply_async((1, 2), serializer="pickle"),
        lambda app, add: add.update_state(state="PROGRESS"),
        lambda app, add: add.chunks([(1, 2)], 1),
        lambda app, add: add.s(1, 2).stamp(x=1),
        lambda app, add: app.AsyncResult("1").revoke(),
        lambda app, add: app.GroupResult("1", []).save(),
        lambda app, add: schedules.crontab(day_of_week=1, day_of_month=1),
        lambda app, add: schedules.schedule(1, relative=True),
        lambda app, add: Celery(log="x"),
        lambda app, add: group(add.s(1, 2)).apply_async(link=add.s(1)),
    ],
)
def test_unsupported_features_raise_at_once(app: Celery, add: Task, use: Any) -> None:
    with pytest.raises(NotCovered, match="is not supported"):
        use(app, add)


def test_another_broker_url_requires_hookstation_url(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOOKSTATION_URL", "HOOKSTATION_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ImproperlyConfigured, match="'redis'; set HOOKSTATION_URL"):
        app.client.close()
    app.conf.broker_url = "https://:hsk_1_2@broker.example:8443"
    assert app.conf.address == ("https://broker.example:8443", "hsk_1_2")
    monkeypatch.setenv("HOOKSTATION_URL", "http://127.0.0.1:8000")
    monkeypatch.setenv("HOOKSTATION_KEY", "hsk_3_4")
    assert app.conf.address == ("http://127.0.0.1:8000", "hsk_3_4")


def test_results_need_a_backend(add: Task, app: Celery) -> None:
    app.conf.result_backend = None
    with pytest.raises(ImproperlyConfigured, match="No result backend"):
        app.AsyncResult("1").get()


# -- mappings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broker", "options", "given", "expected"),
    [
        ("redis://h", {}, 0, 9),
        ("redis://h", {}, 9, 0),
        ("redis://h", {}, None, 9),
        ("amqp://h", {}, 9, 9),
        ("amqp://h", {}, None, 0),
        ("http://h", {}, 3, 3),
        ("http://h", {"queue_order_strategy": "priority"}, 3, 6),
    ],
)
def test_priorities_keep_the_order_of_the_previous_broker(
    app: Celery, broker: str, options: dict[str, Any], given: int | None, expected: int
) -> None:
    app.conf.update(broker_url=broker, broker_transport_options=options)
    assert app.conf.priority(given) == expected
    assert app.conf.priority_of_broker(expected) == (given or 0)


@pytest.mark.parametrize(
    ("rhythm", "fields"),
    [
        (30, {"every_ms": 30_000}),
        (timedelta(minutes=1), {"every_ms": 60_000}),
        (schedules.schedule(0.5), {"every_ms": 500}),
        (schedules.crontab(), {"cron": "* * * * *"}),
        (schedules.crontab(minute=0, hour="*/3,8-17"), {"cron": "0 */3,8-17 * * *"}),
        (
            schedules.crontab(0, [7, 19], day_of_week="mon-fri"),
            {"cron": "0 7,19 * * MON-FRI"},
        ),
    ],
)
def test_beat_schedules_become_broker_schedules(rhythm: Any, fields: dict[str, Any]) -> None:
    found = schedules.maybe_schedule(rhythm).as_fields("Europe/Paris")
    if "cron" in fields:
        fields = fields | {"timezone": "Europe/Paris"}
    assert found == fields


def test_routes_are_names_patterns_and_functions(app: Celery) -> None:
    def router(name: str, args: Any, kwargs: Any, options: Any, task: Any = None) -> Any:
        return {"queue": "mine", "priority": 3} if name == "by.function" else None

    app.conf.task_routes = [router, {"feed.*": "feeds", "web.index": {"queue": "web"}}]
    options: dict[str, Any] = {}
    names = ("by.function", "feed.read", "web.index", "web.other")
    assert [app._queue_of(name, (), {}, options) for name in names] == [
        "mine",
        "feeds",
        "web",
        "celery",
    ]
    assert options == {"priority": 3}
    assert app._queue_of("feed.read", (), {}, {"queue": "chosen"}) == "chosen"


def test_settings_are_read_from_django(app: Celery) -> None:
    class Settings:
        CELERY_TASK_DEFAULT_QUEUE = "jobs"
        CELERY_TIMEZONE = "Europe/Paris"
        DEBUG = True

    app.config_from_object(Settings, namespace="CELERY")
    assert (app.conf.task_default_queue, app.conf["timezone"]) == ("jobs", "Europe/Paris")


def test_values_round_trip_through_a_message() -> None:
    values = [
        datetime(2026, 1, 2, 3, tzinfo=UTC),
        date(2026, 1, 2),
        time(3, 4),
        Decimal("1.10"),
        UUID(int=1),
        b"\xff",
        "é",
        None,
    ]
    assert decode(encode(values)) == values
    message = TaskMessage(task="add", id="1", args=values, chain=[signature("b", app=None)])
    assert TaskMessage.decode(message.encode()) == message
    with pytest.raises(ValueError, match="contains no task"):
        TaskMessage.decode(b"{}")


# -- composition ---------------------------------------------------------------------------------


def test_a_task_after_a_group_makes_it_a_chord(add: Task) -> None:
    found = add.s(1, 2) | group(add.s(1), add.s(2)) | add.s(3) | add.s(4)
    assert repr(found) == "add(1, 2) | chord(group([add(1), add(2)]), add(3) | add(4))"
    assert repr(chain(add.s(1, 2), add.s(3))) == "add(1, 2) | add(3)"
    assert repr(chord([add.s(1, 1)], add.s()) | add.s(5)) == (
        "chord(group([add(1, 1)]), add() | add(5))"
    )


def test_derived_ids_are_deterministic(add: Task) -> None:
    header = group(add.s(1, 1), add.s(2, 2))
    results = [header.clone().frozen_as_header("g", add.s(1)) for _ in range(2)]
    first, second = ([result.id for result in one.results] for one in results)
    assert first == second
    assert len({*first}) == 2


def test_a_signature_keeps_its_arguments(add: Task) -> None:
    call = add.s(1).set(queue="slow")
    assert call.clone((2,), countdown=3).options == {"queue": "slow", "countdown": 3}
    assert call.clone((2,)).args == [2, 1]
    assert add.si(1, 2).clone((9,)).args == [1, 2]
    assert call.options == {"queue": "slow"}


# -- eager mode ----------------------------------------------------------------------------------


def test_eager_tasks_run_in_this_process(eager: Celery, add: Task) -> None:
    @eager.task(bind=True, max_retries=3)
    def stubborn(self: Any) -> int:
        if self.request.retries < 2:
            raise self.retry(exc=ValueError("no"))
        return int(self.request.retries)

    total = eager.task(name="total")(sum)
    assert stubborn.delay().get() == 2
    assert (add.s(1, 2) | add.s(3))().get() == 6
    assert (group(add.s(n, n) for n in range(3)) | total.s())().get() == 6
    assert eager.send_task("add", (1, 2)).get() == 3
    failing = add.delay(1, "x")
    assert failing.state == "FAILURE"
    with pytest.raises(TypeError):
        failing.get()
    eager.conf.task_eager_propagates = True
    with pytest.raises(TypeError):
        add.delay(1, "x")


def test_the_hooks_of_a_class_are_called(eager: Celery) -> None:
    heard: list[Any] = []

    class Telling(Task):
        def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
            heard.append(("success", retval))

        def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            heard.append(("failure", repr(exc)))

    @eager.task(base=Telling)
    def halve(x: int) -> float:
        return x / 2 if x else 1 / x

    halve.delay(4)
    halve.delay(0)
    assert heard == [("success", 2.0), ("failure", "ZeroDivisionError('division by zero')")]


def test_calling_a_task_calls_its_function(app: Celery, add: Task) -> None:
    @app.task(bind=True, max_retries=1)
    def once(self: Any) -> None:
        assert self.request.called_directly
        raise self.retry(exc=KeyError("k"))

    assert add(1, 2) == 3
    with pytest.raises(KeyError):
        once()


def test_a_shared_task_belongs_to_every_application(app: Celery) -> None:
    @shared_task(name="shared.double")
    def double(x: int) -> int:
        return 2 * x

    assert app.tasks["shared.double"] is double
    later = Celery("later", set_as_current=False)
    assert later.tasks["shared.double"] is double
    assert double.app is app


def test_rates_are_spread_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("hookstation_client.celery.worker.time.monotonic", lambda: now[0])
    limit = RateLimit("30/m")
    assert limit.wait_s() == 0
    assert limit.wait_s() == 2.0
    now[0] += 2.0
    assert limit.wait_s() == 0
    with pytest.raises(ValueError, match="rate_limit"):
        RateLimit("often")


def test_errors_have_the_names_of_celery() -> None:
    assert issubclass(Retry, exceptions.TaskPredicate)
    assert Reject("why", requeue=True).requeue
    assert str(exceptions.NotRegistered("a.b")) == "There is no task 'a.b'."


def test_a_result_causes_no_imports() -> None:
    """As in CVE-2021-23727 of Celery: a result must not be able to run code where it is read."""
    sys.modules.pop("this", None)
    encoded = {"exc_module": "this", "exc_type": "Zen", "exc_message": ["x"]}

    error = result._decoded(encoded)

    assert type(error).__name__ == "Zen"
    assert error.args == ("x",)
    assert "this" not in sys.modules
