"""The queue of background tasks runs only registered tasks, whatever its tables contain."""

import json
import pickle
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core import signing
from django_q.conf import Conf
from django_q.models import OrmQ, Schedule
from django_q.scheduler import scheduler
from django_q.signing import PickleSerializer, SignedPackage

from channels_app.database import clock
from delivery import metrics
from delivery.cluster import tasks
from delivery.maintenance import sweeps
from delivery.processes import task_queue
from delivery.processes.task_queue import Stop, TaskBroker
from tests.support.hostile import Bomb, signed_by_django_q2, stored
from tests.support.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.mysql]

CALLS_A_SHELL = {"func": "os.system", "schedule_type": Schedule.ONCE}


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Stop:
    """The stop event of the cluster, not set."""
    made = Stop()
    monkeypatch.setattr(task_queue, "stopping", made)
    monkeypatch.setattr(Conf, "POLL", 600)
    return made


@pytest.fixture
def broker(stop: Stop) -> TaskBroker:
    return TaskBroker(list_key="hookstation")


def refused() -> float:
    """Return the number of tasks refused so far."""
    return float(metrics.TASKS_REFUSED._value.get())


def queued() -> list[str]:
    """Return the payloads in the queue."""
    return list(OrmQ.objects.values_list("payload", flat=True))


def taken(broker: TaskBroker) -> list[dict[str, Any]]:
    """Return what a worker dequeues now."""
    until(broker.queue_size, "a task is due")  # after the instant at which it was queued
    return [SignedPackage.loads(package) for _, package in broker.dequeue() or ()]


# -- Registered tasks ------------------------------------------------------------------------------


def test_a_registered_task_reaches_a_worker_once(broker: TaskBroker, stop: Stop) -> None:
    task_queue.add(task_queue.SWEEP)
    assert queued() == [json.dumps({"task": task_queue.SWEEP})]
    assert task_queue.is_queued(task_queue.SWEEP)
    assert not task_queue.is_queued(task_queue.MAIL)

    (task,) = taken(broker)

    assert (task["func"], task["args"], task["kwargs"]) == (task_queue.SWEEP, (), {})
    stop.set()
    assert broker.dequeue() is None


def test_every_registered_task_is_a_function() -> None:
    for name in task_queue.REGISTERED:
        module, _, function = name.rpartition(".")
        assert module == tasks.__name__
        assert callable(getattr(tasks, function))


def test_dequeue_that_waits_returns_when_the_cluster_stops(
    broker: TaskBroker, stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, wait = threading.Event(), stop.wait

    def observed(seconds: float) -> bool:
        waits.set()
        return wait(seconds)

    monkeypatch.setattr(stop, "wait", observed)
    waiting = threading.Thread(target=broker.dequeue, daemon=True)
    waiting.start()
    assert waits.wait(60)

    stop.set()
    waiting.join(60)

    assert not waiting.is_alive()


# -- Unregistered tasks ----------------------------------------------------------------------------


@pytest.mark.trap("code in a row of the task tables")
@pytest.mark.parametrize(
    "options",
    [
        "{}",
        "{'q_options': {'sync': True}}",
        "{'q_options': {'hook': 'os.system', 'sync': True}}",
        "{'q_options': {'chain': [('os.system', ('true',))], 'save': True}}",
    ],
    ids=["plainly", "at once", "with a hook", "with a chain"],
)
@pytest.mark.parametrize("func", ["os.system", task_queue.SWEEP], ids=["hostile", "registered"])
def test_a_schedule_runs_nothing_but_what_is_registered(
    func: str, options: str, broker: TaskBroker, tmp_path: Path
) -> None:
    witness = tmp_path / "ran"
    Schedule.objects.create(
        func=func,
        args=repr((f"touch {witness}",)),
        kwargs=options,
        hook="os.system",
        schedule_type=Schedule.ONCE,
        next_run=clock.now() - timedelta(seconds=1),
    )
    before = refused()

    scheduler(broker)

    found = taken(broker) if func in task_queue.REGISTERED else []
    assert not witness.exists()
    assert [(task["func"], task["args"]) for task in found] == [(task_queue.SWEEP, ())] * len(found)
    assert not {"hook", "chain", "sync"} & {option for task in found for option in task}
    assert (len(found), refused() - before) == ((0, 1) if func == "os.system" else (1, 0))
    assert func != "os.system" or queued() == []


@pytest.mark.trap("code in a row of the task tables")
def test_a_hostile_schedule_does_not_hold_up_the_others(broker: TaskBroker) -> None:
    Schedule.objects.create(name="a", **CALLS_A_SHELL)
    task_queue.ensure_schedules()
    Schedule.objects.create(name="b", **CALLS_A_SHELL)
    Schedule.objects.filter(name__in=task_queue.SCHEDULES).update(
        next_run=clock.now() - timedelta(seconds=90)
    )

    scheduler(broker)

    assert Schedule.objects.get(name="a").repeats == 0
    names = {task["func"] for task in taken(broker)}
    assert names == {task_queue.SWEEP, task_queue.PIPELINE}


@pytest.mark.trap("code in a row of the task tables")
def test_a_schedule_whose_arguments_cannot_be_read_stops_the_others_until_the_next_sweep(
    broker: TaskBroker,
) -> None:
    task_queue.ensure_schedules()
    Schedule.objects.update(next_run=clock.now() - timedelta(seconds=90))
    Schedule.objects.create(name="c", **{**CALLS_A_SHELL, "args": "(("})

    scheduler(broker)
    assert queued() == []

    (sweep,) = (sweep for sweep in sweeps.SWEEPS if sweep.name == "other schedules")
    assert sum(sweep.work()) == 1
    scheduler(broker)
    assert {task["func"] for task in taken(broker)} == {task_queue.SWEEP, task_queue.PIPELINE}


def test_the_brokers_own_task_schedules_are_restored() -> None:
    task_queue.ensure_schedules()
    name, (task, minutes) = next(iter(task_queue.SCHEDULES.items()))
    changed = {"func": "os.system", "hook": "os.system", "args": "'true'", "kwargs": "{'a': 1}"}
    Schedule.objects.filter(name=name).update(**changed, repeats=0, minutes=999)
    Schedule.objects.create(name=name, **CALLS_A_SHELL)

    task_queue.ensure_schedules()

    row = Schedule.objects.get(name=name)
    assert (row.func, row.minutes, row.repeats) == (task, minutes, -1)
    assert (row.hook, row.args, row.kwargs) == (None, None, None)


@pytest.mark.trap("code in a row of the task tables")
def test_a_row_of_the_queue_that_names_no_task_goes_unopened(
    broker: TaskBroker, tmp_path: Path
) -> None:
    witness = tmp_path / "ran"
    payloads = {
        # A signature as django-q2 makes it, which anyone with SECRET_KEY can make.
        "pickle": signed_by_django_q2(Bomb(witness), settings.SECRET_KEY),
        "name": json.dumps({"task": "os.system"}),
        "more": json.dumps({"task": task_queue.SWEEP, "hook": "os.system"}),
        "rubbish": "rubbish",
        "number": "7",
        "deep": "[" * 100_000,
        "empty": "",
    }
    lock = "2020-01-01 00:00:00+00:00"
    for kind, payload in payloads.items():
        OrmQ.objects.create(key="hookstation", payload=payload, lock=lock)
        before = refused()
        assert taken(broker) == [], kind
        assert not witness.exists(), kind
        assert queued() == [], kind
        assert refused() == before + 1, kind


def test_packages_are_signed_with_a_key_of_this_process() -> None:
    assert Conf.SECRET_KEY != settings.SECRET_KEY
    package = signing.dumps({}, settings.SECRET_KEY, Conf.PREFIX, serializer=PickleSerializer)
    with pytest.raises(signing.BadSignature):
        SignedPackage.loads(package)


# -- Failed tasks ----------------------------------------------------------------------------------


def test_the_error_of_a_failed_task_is_read_without_unpickling(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    assert task_queue.text_of(stored("it failed :\nbecause")) == "it failed :\nbecause"
    assert str(witness) in task_queue.text_of(stored(Bomb(witness)))
    assert not witness.exists()
    pickle.loads(pickle.dumps(Bomb(witness)))  # noqa: S301 - that is the point
    assert witness.exists()  # the pickle does run code


@pytest.mark.parametrize("text", ["", "%", "gASV", "AAAA"])
def test_an_unreadable_task_is_marked(text: str) -> None:
    assert task_queue.text_of(text) == "It cannot be read."
