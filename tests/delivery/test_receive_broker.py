"""Pull consumers of the real broker, over real HTTP, with workers in threads and processes."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from delivery.rules.pull_snippets import receiving
from tests.broker import ROOT, Broker, running, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
POLLS = 4
SETTINGS = {
    "HOOKSTATION_WEB_WORKERS": "1",
    "HOOKSTATION_WEB_THREADS": "8",
    "HOOKSTATION_LONG_POLLS": str(POLLS),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any) -> Iterator[Broker]:
    with (
        django_db_blocker.unblock(),
        running(tmp_path_factory.mktemp("pull"), **SETTINGS) as started,
    ):
        started.call("PUT", "/channels/chores", 201, json={"exposure": "external"})
        yield started


@pytest.fixture
def path(broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """A pull consumer of the test's own, retired at its end."""
    name = request.node.name.partition("[")[0][:100].replace("_", "-")
    path = f"/channels/chores/consumers/{name}"
    values = {"mode": "pull", "event_types": [name.replace("-", "_")]}
    broker.call("PUT", path, 201, json=values)
    yield path
    broker.call("DELETE", path, 204)


def publish(broker: Broker, path: str, number: int) -> set[str]:
    kind = path.rpartition("/")[2].replace("-", "_")
    items = [{"body": str(n), "event_type": kind} for n in range(number)]
    found = broker.call("POST", "/channels/chores/messages/batch", 207, json=items)
    return {item["id"] for item in found["items"]}


def post(broker: Broker, path: str, body: Any) -> requests.Response:
    """A call with a connection of its own."""
    headers = {"Authorization": str(broker.http.headers["Authorization"])}
    return requests.post(f"{broker.base}{path}", json=body, headers=headers, timeout=60)


@pytest.mark.seed("S2-07")
@pytest.mark.seed("S2-08")
def test_send_receive_and_acknowledge(broker: Broker, path: str) -> None:
    ids = publish(broker, path, 25)
    got: list[str] = []
    while len(got) < 25:
        found = broker.call("POST", f"{path}/receive", 200, json={"max": 10, "wait_s": 20})
        leases = [one["lease"] for one in found["messages"]]
        assert leases, "nothing came within the wait"
        got += [one["id"] for one in found["messages"]]
        done = broker.call("POST", "/leases/ack", 200, json={"leases": leases})
        assert done == {"done": leases, "failed": []}
    assert sorted(got) == sorted(ids)
    assert broker.call("POST", f"{path}/receive", 200, json={})["messages"] == []
    shown = broker.call("GET", f"{path}/deliveries?state=Delivered", 200)["items"]
    assert {one["message_id"] for one in shown} == ids


@pytest.mark.seed("S2-61")
def test_a_message_ends_the_wait_of_one_of_those_who_wait(broker: Broker, path: str) -> None:
    answers: list[Any] = []

    def wait() -> None:
        body = {"wait_s": 20, "max": 1}
        while not (found := post(broker, f"{path}/receive", body).json()).get("messages"):
            pass
        answers.append((time.monotonic(), found["messages"]))

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    assert not answers
    (first,) = publish(broker, path, 1)
    wait_until(lambda: len(answers) == 1, 30, "nobody hears of it")
    (second,) = publish(broker, path, 1)
    for thread in threads:
        thread.join(30)
    assert {one["id"] for _, messages in answers for one in messages} == {first, second}


def test_those_who_wait_do_not_keep_others_from_publishing(broker: Broker, path: str) -> None:
    """However many there are: the first few wait, the others are told to come again."""
    statuses: list[int] = []

    def wait() -> None:
        statuses.append(post(broker, f"{path}/receive", {"wait_s": 10}).status_code)

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(40)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(statuses) >= 40 - POLLS, 30, "who finds no place is kept waiting")
    assert set(statuses) == {503}
    for _ in range(20):
        broker.call("POST", "/channels/chores/messages", 202, data="x")
    for thread in threads:
        thread.join(30)
    assert sorted(set(statuses)) == [200, 503]
    assert 1 <= statuses.count(200) <= POLLS


def test_a_stop_does_not_wait_for_those_who_wait(tmp_path: Path) -> None:
    with running(tmp_path, **SETTINGS) as broker:
        broker.call("PUT", "/channels/chores", 201, json={})
        broker.call("PUT", "/channels/chores/consumers/one", 201, json={"mode": "pull"})
        place = "/channels/chores/consumers/one/receive"

        def wait() -> None:
            try:
                post(broker, place, {"wait_s": 20})
            except requests.RequestException:
                return  # cut off in the middle, as by any stop

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        time.sleep(1)
        assert broker.stop(seconds=25) == 0
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.seed("S2-59")
def test_the_worker_that_people_copy_works(broker: Broker, path: str, tmp_path: Path) -> None:
    """As it stands on the page, two of them side by side."""
    snippet = receiving(broker.base, "chores", path.rpartition("/")[2])[0]
    (tmp_path / snippet.file_name).write_text(snippet.code)
    key = str(broker.http.headers["Authorization"]).removeprefix("Bearer ")
    environment = {"HOOKSTATION_KEY": key, "PATH": broker.environment["PATH"]}
    command = [sys.executable, str(tmp_path / snippet.file_name)]
    log = (tmp_path / "log").open("wb")
    workers = [
        subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
        for _ in range(2)
    ]
    try:
        ids = publish(broker, path, 30)
        wait_until(
            lambda: (
                len(broker.call("GET", f"{path}/deliveries?state=Delivered", 200)["items"]) == 30
            ),
            60,
            "they do not work it off",
            (tmp_path / "log").read_text,
        )
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(line.split()[0] for line in lines) == sorted(ids)
