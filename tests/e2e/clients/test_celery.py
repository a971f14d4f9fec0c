"""A Celery application with one changed import: the same tests on Celery with Redis and on ours."""

import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from hookstation_client.celery import Celery
from hookstation_client.celery.protocol import TaskMessage
from hookstation_client.celery.worker import Worker

from tests.support import ports, redis_server
from tests.support.broker import ROOT, Broker, wait_until
from tests.support.examples import Program, task_receiver
from tests.support.outage import Proxy

pytestmark = pytest.mark.e2e
PATIENCE_S = 90
EXAMPLES = ROOT / "clients/examples/celery"


class Shop:
    """The example application on one of the two task queues, and its worker processes."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self.module = _load(name)
        self.environment = environment
        self._command = command

    def __getattr__(self, task: str) -> Any:
        return getattr(self.module, task)

    def made_worker(self, folder: Path, *options: str) -> Program:
        """A worker of the application that is not started; its files are in ``folder``."""
        log, command = folder / "worker.log", (*self._command, *options)
        return Program("celery", log, self.environment, *command, workplace=folder)

    @contextmanager
    def worker(self, folder: Path, *options: str) -> Iterator[Program]:
        """Run a worker inside the block; print its log at the end."""
        program = self.made_worker(folder, *options)
        program.start()
        try:
            yield program
            program.stop()
        finally:
            program.kill()
            print(program.log())  # noqa: T201 - pytest shows it on failure


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def _on_celery(folder: Path) -> Iterator[Shop]:
    """Celery on its own Redis."""
    with redis_server.running(folder) as port:
        url = f"redis://127.0.0.1:{port}"
        environment = {"CELERY_BROKER_URL": f"{url}/0", "CELERY_RESULT_BACKEND": f"{url}/1"}
        command = ["-m", "celery", "-A", "before", "worker", "-l", "INFO"]
        with _shop("before", command, environment) as shop:
            yield shop


@contextmanager
def _on_hookstation(broker: Broker) -> Iterator[Shop]:
    url = f"http://127.0.0.1:{broker.port}"
    environment = {"HOOKSTATION_URL": url, "HOOKSTATION_KEY": broker.key}
    command = ["-m", "hookstation_client.celery", "-A", "after"]
    with _shop("after", command, environment) as shop:
        yield shop


@contextmanager
def _shop(name: str, command: list[str], environment: dict[str, str]) -> Iterator[Shop]:
    """The application; it finds its task queue in the environment of this process, too."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in environment.items():
            patch.setenv(variable, value)
        shop = Shop(name, command, environment)
        yield shop
        shop.app.close()


@pytest.fixture(scope="module", params=["celery", "hookstation"])
def shop(
    request: pytest.FixtureRequest,
    broker: Broker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shop]:
    is_ours = request.param == "hookstation"
    with (
        _on_hookstation(broker) if is_ours else _on_celery(tmp_path_factory.mktemp("celery"))
    ) as made:
        yield made


only_ours = pytest.mark.parametrize("shop", ["hookstation"], indirect=True)
"""For tests of what Celery with Redis does not do, or does otherwise."""


@pytest.fixture(scope="module")
def working(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run a worker of both queues, with beat; yield its folder."""
    folder = tmp_path_factory.mktemp("worker")
    with shop.worker(folder, "-c", "2", "-Q", "celery,slow", "-B"):
        yield folder


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_a_task_runs_and_its_result_is_returned(shop: Shop, working: Path) -> None:
    result = shop.add.delay(2, 3)
    assert result.get(timeout=PATIENCE_S) == 5
    assert result.ready()
    assert result.successful()
    assert result.state == result.status == "SUCCESS"
    again = shop.app.AsyncResult(result.id)
    assert again.get(timeout=PATIENCE_S) == 5
    again.forget()
    assert shop.app.AsyncResult(result.id).state == "PENDING"


def test_get_raises_the_error_of_a_failed_task(shop: Shop, working: Path) -> None:
    result = shop.reserve.delay("lamp")
    with pytest.raises(shop.OutOfStock, match="lamp"):
        result.get(timeout=PATIENCE_S)
    assert result.failed()
    assert result.state == "FAILURE"
    assert "OutOfStock" in result.traceback
    assert isinstance(result.get(propagate=False), shop.OutOfStock)


def test_task_request_describes_the_call(shop: Shop, working: Path) -> None:
    result = shop.whoami.apply_async((1, 2), {"x": 3}, task_id=f"order-{os.getpid()}-{shop.name}")
    told = result.get(timeout=PATIENCE_S)
    assert told == {"id": result.id, "args": [1, 2], "kwargs": {"x": 3}, "task": "shop.whoami"}


def test_arguments_are_checked_when_a_task_is_sent(shop: Shop) -> None:
    with pytest.raises(TypeError):
        shop.add.delay(1)


def test_a_task_is_sent_by_its_name_and_routed(shop: Shop, working: Path) -> None:
    by_name = shop.app.send_task("shop.invoice", args=[7])
    assert by_name.get(timeout=PATIENCE_S) == {"number": 7, "queue": "slow"}
    chosen = shop.invoice.apply_async([8], queue="celery")
    assert chosen.get(timeout=PATIENCE_S) == {"number": 8, "queue": "celery"}


def test_a_retried_task_knows_its_number_of_retries(shop: Shop, working: Path) -> None:
    manual, automatic = shop.fetch.delay(2), shop.charge.delay(1)
    assert manual.get(timeout=PATIENCE_S) == 2
    assert automatic.get(timeout=PATIENCE_S) == 1
    manual, automatic = shop.fetch.delay(9), shop.charge.delay(9)
    with pytest.raises(shop.OutOfStock, match="fetch"):
        manual.get(timeout=PATIENCE_S)
    with pytest.raises(ConnectionError, match="the bank"):
        automatic.get(timeout=PATIENCE_S)


def test_a_task_with_a_countdown_does_not_run_early(
    shop: Shop, working: Path, tmp_path: Path
) -> None:
    due = datetime.now(UTC) + timedelta(seconds=2)
    results = [shop.now.apply_async(eta=due), shop.now.apply_async(countdown=2)]
    for result in results:
        assert datetime.fromisoformat(result.get(timeout=PATIENCE_S)) >= due - timedelta(
            seconds=0.1
        )


def test_links_follow_a_success_and_a_failure(shop: Shop, working: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    shop.add.apply_async((1, 2), link=shop.note.si(str(good), "linked"))
    failing = shop.break_down.apply_async((str(bad),), link_error=shop.apologise.s())
    wait_until(lambda: bool(lines(good) and lines(bad)), PATIENCE_S, "no link was followed")
    assert lines(good) == ["linked"]
    assert lines(bad) == [f"{failing.id} OutOfStock({str(bad)!r})"]


def test_chains_groups_and_chords(shop: Shop, working: Path) -> None:
    chained = (shop.add.s(1, 2) | shop.add.s(3) | shop.add.si(10, 10) | shop.add.s(4))()
    grouped = shop.group(shop.add.s(n, n) for n in range(3))()
    chorded = shop.month_end([1, 2, 3])()
    assert chained.get(timeout=PATIENCE_S) == 24
    assert chained.parent.get(timeout=PATIENCE_S) == 20
    assert grouped.get(timeout=PATIENCE_S) == [0, 2, 4]
    assert grouped.successful()
    assert chorded.get(timeout=PATIENCE_S) == 13
    nothing = shop.chord([], shop.total.s())()
    assert nothing.get(timeout=PATIENCE_S) == 0


def test_a_chord_fails_if_a_task_of_its_header_fails(shop: Shop, working: Path) -> None:
    result = shop.chord([shop.add.s(1, 1), shop.reserve.s("lamp")], shop.total.s())()
    with pytest.raises(Exception, match=r"OutOfStock\('lamp'\)"):
        shop.app.AsyncResult(result.id).get(timeout=PATIENCE_S)


def test_a_chain_ends_with_a_failure(shop: Shop, working: Path) -> None:
    result = shop.chain(shop.reserve.s("lamp"), shop.note.s("never"))()
    with pytest.raises(shop.OutOfStock):
        result.parent.get(timeout=PATIENCE_S)


def test_beat_sends_due_tasks(shop: Shop, working: Path) -> None:
    ticks = working / "ticks"
    wait_until(lambda: len(lines(ticks)) >= 2, PATIENCE_S, "beat sent nothing")


@only_ours
@pytest.mark.parametrize("framework", ["fastapi", "flask", "django"])
def test_tasks_are_pushed_into_a_web_application(
    shop: Shop, framework: str, tmp_path: Path
) -> None:
    port, queue = ports.claim(), f"pushed-{framework}"
    url = f"http://127.0.0.1:{port}/tasks"
    secret = shop.app.register_push(url, queue, retry=[1])["secret"]
    environment = shop.environment | {"HOOKSTATION_SECRET": secret}
    log = tmp_path / "web.log"
    web = Program("celery", log, environment, *task_receiver(framework, port))
    web.start()
    try:
        chained = shop.add.s(1, 2).set(queue=queue) | shop.fetch.s().set(queue=queue)
        assert chained().get(timeout=PATIENCE_S) == 3
        reserved = shop.reserve.apply_async(["lamp"], queue=queue)
        with pytest.raises(shop.OutOfStock, match="lamp"):
            reserved.get(timeout=PATIENCE_S)
        forged = requests.post(url, data=b"{}", timeout=PATIENCE_S)
        assert forged.status_code == 401
    finally:
        web.kill()
        print(web.log())  # noqa: T201 - pytest shows it on failure


@only_ours
def test_a_task_that_runs_twice_sends_its_next_task_once(shop: Shop, working: Path) -> None:
    """A kill between sending the next task and the acknowledgement repeats a task."""
    follower, linked = (f"{name}-{os.getpid()}" for name in ("follower", "linked"))
    message = TaskMessage(
        task="shop.now",
        id=f"twice-{os.getpid()}",
        chain=[shop.whoami.s().set(task_id=follower)],
        callbacks=[shop.whoami.s().set(task_id=linked)],
    )
    for _ in range(2):
        shop.app.run_message(message.encode(), "msg_1")
    first = shop.app.AsyncResult(message.id).get(timeout=PATIENCE_S)
    for sent in (follower, linked):
        assert shop.app.AsyncResult(sent).get(timeout=PATIENCE_S)["args"] == [first]
    queued = [f"{sent}:0" for sent in (follower, linked)]
    client = shop.app.client
    assert [len(list(client.messages("celery", id=key))) for key in queued] == [1, 1]


@only_ours
def test_a_killed_worker_loses_nothing(shop: Shop, tmp_path: Path) -> None:
    """Each task runs at least once, and the chains continue.

    Celery gives a task of a killed worker to another one after an hour.
    """
    file, queue = tmp_path / "notes", "killed"
    results = [
        shop.chain(
            shop.slow.s(str(file), number, 0.5).set(queue=queue), shop.add.s(100).set(queue=queue)
        )()
        for number in range(6)
    ]
    first = shop.made_worker(tmp_path, "-c", "3", "-Q", queue)
    first.start()
    wait_until(lambda: any("done" in line for line in lines(file)), PATIENCE_S, "nothing was done")
    wait_until(lambda: _running_now(lines(file)) > 0, PATIENCE_S, "nothing runs")
    first.kill()
    assert _running_now(lines(file)) > 0
    with shop.worker(tmp_path, "-c", "3", "-Q", queue):
        found = [result.get(timeout=PATIENCE_S) for result in results]
    assert found == [100, 101, 102, 103, 104, 105]
    assert {line for line in lines(file) if "done" in line} == {f"done {n}" for n in range(6)}


def _running_now(found: list[str]) -> int:
    return sum("begun" in line for line in found) - sum("done" in line for line in found)


@only_ours
def test_a_worker_that_starts_before_its_broker_waits_for_it(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, queue = tmp_path / "notes", "early"
    shop.note.apply_async([str(file), "done"], queue=queue)
    with Proxy(shop.environment["HOOKSTATION_URL"]) as way:
        port = urlsplit(way.url).port
        monkeypatch.setenv("HOOKSTATION_URL", f"http://127.0.0.1:{port}")
        app = Celery("shop", broker="redis://127.0.0.1", set_as_current=False)
        app.task(name="shop.note")(shop.note.run)
        app.client.retries = 0
        monkeypatch.setattr("hookstation_client.celery.worker.WAIT_S", 1)  # `stop` waits for it
        worker = Worker(app, [queue], 1)
        thread = threading.Thread(target=worker.run)
        with way.away():
            thread.start()
            wait_until(
                lambda: "The broker is unavailable" in caplog.text or not thread.is_alive(),
                PATIENCE_S,
                "it has not asked",
            )
            assert thread.is_alive()
        wait_until(lambda: lines(file) == ["done"], PATIENCE_S, "it does not work")
        worker.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        app.close()


def test_a_worker_skips_expired_tasks_runs_urgent_ones_first_and_ends_running_ones_at_sigterm(
    shop: Shop, tmp_path: Path
) -> None:
    """The application uses Redis priorities: 0 is the most urgent."""
    file, queue = tmp_path / "notes", f"idle-{shop.name}"
    expired = datetime.now(UTC) + timedelta(seconds=1)
    shop.note.apply_async([str(file), "late"], expires=expired, queue=queue)
    for priority in (9, 3, 0, 6):
        shop.note.apply_async([str(file), str(priority)], queue=queue, priority=priority)
    wait_until(lambda: datetime.now(UTC) > expired, PATIENCE_S, "the clock stands")
    with shop.worker(tmp_path, "-c", "1", "-Q", queue) as worker:
        wait_until(lambda: len(lines(file)) == 4, PATIENCE_S, "they were not run")
        # One receive in ten takes the oldest task, which is the least urgent one here.
        assert [line for line in lines(file) if line != "9"] == ["0", "3", "6"]
        for number in range(2):
            shop.slow.apply_async([str(file), number, 1.5], queue=queue)
        wait_until(lambda: len(lines(file)) == 5, PATIENCE_S, "nothing was begun")
        assert worker.stop() == os.EX_OK
    first = lines(file)[4].split()[1]
    assert lines(file)[4:] == [f"begun {first}", f"done {first}"]
