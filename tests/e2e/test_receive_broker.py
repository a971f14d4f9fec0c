"""Pull consumers, queues and acknowledgements of a real broker, over real HTTP."""

import subprocess
import sys
import threading
import time
from collections import Counter as Tally
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from django.core.management import CommandError, call_command

from delivery.core.code_samples import receiving
from tests.support.broker import ROOT, Broker, heard_ids, running, wait_until
from tests.support.receiver import Receiver, Reply

pytestmark = pytest.mark.e2e
POLLS = 4
SETTINGS = {
    "HOOKSTATION_WEB_WORKERS": "1",
    "HOOKSTATION_WEB_THREADS": "8",
    "HOOKSTATION_LONG_POLLS": str(POLLS),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("pull"), **SETTINGS) as started:
        started.call("PUT", "/channels/chores", 201, json={"exposure": "external"})
        started.call("PUT", "/channels/calls", 201, json={})
        yield started


@pytest.fixture
def path(broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The path of the test's own pull consumer, which is retired at the end."""
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
    """POST on a new connection."""
    headers = {"Authorization": str(broker.http.headers["Authorization"])}
    return requests.post(f"{broker.base}{path}", json=body, headers=headers, timeout=300)


def receive(broker: Broker, path: str, body: Any) -> list[dict[str, Any]]:
    """Receive messages; repeat while requests of earlier tests occupy all long polls."""
    end = time.monotonic() + 300
    while (answer := post(broker, f"{path}/receive", body)).status_code == 503:
        assert time.monotonic() < end, answer.text
        time.sleep(0.1)
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


@pytest.mark.seed("S2-07", "S2-08")
def test_send_receive_and_acknowledge(broker: Broker, path: str) -> None:
    ids = publish(broker, path, 25)
    got: list[str] = []
    while len(got) < 25:
        found = receive(broker, path, {"max": 10, "wait_s": 20})
        leases = [one["lease"] for one in found]
        assert leases, "nothing came within the wait"
        got += [one["id"] for one in found]
        done = broker.call("POST", "/leases/ack", 200, json={"leases": leases})
        assert done == {"done": leases, "failed": []}
    assert sorted(got) == sorted(ids)
    assert broker.call("POST", f"{path}/receive", 200, json={})["messages"] == []
    shown = broker.call("GET", f"{path}/deliveries?state=Delivered", 200)["items"]
    assert {one["message_id"] for one in shown} == ids


@pytest.mark.mysql
def test_a_receive_call_after_a_publish_returns_the_message_at_once(
    broker: Broker, path: str
) -> None:
    for number in (1, 3) * 15:
        ids = publish(broker, path, number)
        found = receive(broker, path, {"max": 10})
        assert {one["id"] for one in found} == ids
        broker.call("POST", "/leases/ack", 200, json={"leases": [one["lease"] for one in found]})


def share(broker: Broker, path: str, total: int, workers: int) -> list[list[str]]:
    """Let workers receive and acknowledge until all is done; return the message ids of each."""
    got: list[list[str]] = [[] for _ in range(workers)]
    all_hold = threading.Barrier(workers)

    def work(number: int) -> None:
        end, mine = time.monotonic() + 400, got[number]
        while sum(map(len, got)) < total and time.monotonic() < end:
            asked = {"max": 10, "lease_s": 300, "worker_id": f"worker-{number}"}
            found = receive(broker, path, asked)
            if found and not mine:
                all_hold.wait(400)  # so that each gets a share, however slow it is
            mine += [one["id"] for one in found]
            if found:
                leases = [one["lease"] for one in found]
                said = post(broker, "/leases/ack", {"leases": leases}).json()
                assert said == {"done": leases, "failed": []}
            else:
                time.sleep(0.02)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    return got


@pytest.mark.mysql
@pytest.mark.seed("S1-03", "S4-07", "S4-09")
def test_messages_of_three_producers_for_one_time_are_handled_once(
    broker: Broker, path: str
) -> None:
    kind = path.rpartition("/")[2].replace("-", "_")
    at = int(time.time() * 1000) + 5000
    item = {"body": "x", "event_type": kind, "deliver_at": at}
    ids: set[str] = set()
    for number in range(3):
        producer = f"/producers/maker-{number}"
        broker.call("PUT", producer, 201, json={})
        key = broker.call("POST", f"{producer}/keys", 201, json={"channels": ["chores"]})["key"]
        answer = requests.post(
            f"{broker.base}/channels/chores/messages/batch",
            json=[item] * 334,
            headers={"Authorization": f"Bearer {key}"},
            timeout=300,
        )
        ids |= {stored["id"] for stored in answer.json()["items"]}
    assert len(ids) == 1002
    early = receive(broker, path, {"max": 1, "lease_s": 1})
    assert not early or time.time() * 1000 >= at
    got = share(broker, path, 1002, 5)
    every = [one for mine in got for one in mine]
    assert len(every) == len(set(every)), "a message came to two of them"
    assert set(every) == ids


@pytest.mark.mysql
@pytest.mark.seed("S4-39", "S4-42")
def test_messages_are_redistributed_when_workers_join_and_die(broker: Broker, path: str) -> None:
    """A new worker gets a share without any assignment; the dead worker's messages come back."""
    ids = publish(broker, path, 450)
    asked = {"worker_id": "mortal", "lease_s": 2}
    held: set[str] = set()

    def hold() -> bool:
        # Consumers get the messages of a large batch shortly after the publish response.
        held.update(one["id"] for one in receive(broker, path, asked | {"max": 50 - len(held)}))
        return len(held) == 50

    wait_until(hold, 60, "nothing comes")
    done: dict[str, list[str]] = {"first": [], "second": [], "joins": []}
    half, joined = threading.Event(), threading.Event()

    def work(name: str) -> None:
        end, mine = time.monotonic() + 400, done[name]
        if name == "joins":
            assert half.wait(400), "they do not work it off"
        while sum(map(len, done.values())) < 450 and time.monotonic() < end:
            found = receive(broker, path, {"max": 10, "worker_id": name})
            if found:
                leases = [one["lease"] for one in found]
                post(broker, "/leases/ack", {"leases": leases})
                mine += [one["id"] for one in found]
            else:
                time.sleep(0.02)
            if name == "joins" and mine:
                joined.set()
            elif sum(map(len, done.values())) > 225:
                half.set()
                assert joined.wait(400), "a new worker gets nothing"

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, done))
    every = [one for mine in done.values() for one in mine]
    assert len(every) == len(set(every))
    assert set(every) == ids
    assert held <= set(every)


@pytest.mark.mysql
@pytest.mark.seed("S2-66", "S3-21")
def test_sticky_keys_keep_their_order_when_a_worker_joins(broker: Broker, path: str) -> None:
    """Four workers share a hundred keys; a fifth joins when half the messages are done."""
    broker.call("PATCH", path, 200, json={"ordering": True})
    kind, total = path.rpartition("/")[2].replace("-", "_"), 400
    keys = [f"key-{n}" for n in range(100)]
    taken: list[tuple[str, int, int]] = []
    at_fifth: list[int] = []

    def ask(number: int) -> list[dict[str, Any]]:
        asked = {"max": 5, "lease_s": 120, "worker_id": f"sticky-{number}", "keys": "sticky"}
        return receive(broker, path, asked)

    def work(number: int) -> None:
        end = time.monotonic() + 500
        if number == 4:
            wait_until(lambda: len(taken) >= total // 2, 120, "the four do not work it off")
            at_fifth.append(len(taken))
        while len(taken) < total and time.monotonic() < end:
            found = ask(number)
            # Record before acknowledging: until then no other worker gets the key's next message.
            taken.extend((one["ordering_key"], int(one["body"]), number) for one in found)
            if found:
                post(broker, "/leases/ack", {"leases": [one["lease"] for one in found]})
            else:
                time.sleep(0.02)

    assert [ask(number) for number in range(4)] == [[]] * 4
    items = [
        {"body": str(n), "ordering_key": key, "event_type": kind} for n in range(4) for key in keys
    ]
    with ThreadPoolExecutor(5) as pool:
        working = [pool.submit(work, number) for number in range(5)]
        broker.call("POST", "/channels/chores/messages/batch", 207, json=items)
        for one in working:
            one.result()
    for key in keys:
        heard = [n for its, n, _ in taken if its == key]
        assert heard == list(range(4)), "one overtook another, or came twice"
    stable = {(key, number) for key, _, number in taken[: at_fifth[0]]}
    assert len(stable) == len({key for key, _ in stable}), "a key was seen by two"
    assert {number for *_, number in taken} == set(range(5))


def test_long_polls_do_not_block_publishing(broker: Broker, path: str) -> None:
    """With any number of receivers: the first few wait, the others get 503."""
    receive(broker, path, {"wait_s": 0.1})  # waits until a long poll is free
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


@pytest.mark.seed("S2-59")
def test_the_documented_worker_code_works(broker: Broker, path: str, tmp_path: Path) -> None:
    """Two processes run the snippet unchanged."""
    snippet = receiving(broker.base, "chores", path.rpartition("/")[2])[0]
    (tmp_path / snippet.file_name).write_text(snippet.code)
    key = broker.key
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


@pytest.mark.seed("S2-62")
def test_the_listen_command_forwards_to_a_private_machine(
    broker: Broker, receiver: Receiver, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text(broker.key)
    place, log = "/channels/chores/consumers/laptop", tmp_path / "log"
    command = [sys.executable, "manage.py", "listen", "chores", "--name", "laptop"]
    command += ["--key-file", str(key), "--url", broker.base.removesuffix("/api/v1")]
    command += ["--forward", receiver.url("/hook"), "--event", "heard", "--bodies"]
    with log.open("wb") as out:
        listening = subprocess.Popen(
            command, cwd=ROOT, env=broker.environment, stdout=out, stderr=out
        )
    try:
        wait_until(lambda: "Listening" in log.read_text(), 60, "it does not begin", log.read_text)
        items = [{"body": f'{{"n": {n}}}', "event_type": "heard"} for n in range(3)]
        items += [{"body": "not this one", "event_type": "other"}]
        found = broker.call("POST", "/channels/chores/messages/batch", 207, json=items)
        ids = [item["id"] for item in found["items"]][:3]
        wait_until(lambda: len(receiver.requests("/hook")) >= 3, 60, "none come", log.read_text)
        assert sorted(heard_ids(receiver, "/hook")) == sorted(ids)
        bodies = {request.body for request in receiver.requests("/hook")}
        assert bodies == {b'{"n": 0}', b'{"n": 1}', b'{"n": 2}'}

        def done() -> bool:
            shown = broker.call("GET", f"{place}/deliveries?state=Delivered", 200)["items"]
            return len(shown) == 3

        wait_until(done, 60, "they are not acknowledged", log.read_text)
        wait_until(
            lambda: log.read_text().count(" 200 heard ") == 3,
            60,
            "it does not tell of all",
            log.read_text,
        )
    finally:
        listening.terminate()
        status = listening.wait(90)
    assert (status, "Stopped after 3 messages." in log.read_text()) == (0, True), log.read_text()
    assert '{"n": 1}' in log.read_text()
    broker.call("GET", place, 404)


@pytest.mark.parametrize("said", ["wrong key", "taken"])
def test_the_listen_command_reports_errors(
    broker: Broker, path: str, tmp_path: Path, said: str
) -> None:
    key = tmp_path / "key"
    right = broker.key
    key.write_text("hsk_no_key" if said == "wrong key" else right)
    options = {"key_file": str(key), "url": broker.base.removesuffix("/api/v1")}
    sentence = "already" if said == "taken" else "key"
    with pytest.raises(CommandError, match=sentence):
        call_command("listen", "chores", name=path.rpartition("/")[2], **options)
    assert broker.call("GET", path, 200)["state"] == "active"


# -- push --------------------------------------------------------------------------------------


@pytest.mark.mysql
@pytest.mark.seed("S1-03")
def test_a_queue_delivers_each_message_to_one_of_three_consumers(
    broker: Broker, receiver: Receiver
) -> None:
    broker.call("PUT", "/channels/deals", 201, json={"kind": "queue"})
    all_have_some = threading.Event()
    for name in "abc":
        receiver.script(f"/{name}", [Reply(until=all_have_some)] * 300)
        place = f"/channels/deals/consumers/{name}"
        broker.call("PUT", place, 201, json={"url": receiver.url(f"/{name}")})
    items = [{"body": str(n)} for n in range(300)]
    found = broker.call("POST", "/channels/deals/messages/batch", 207, json=items)
    wait_until(lambda: all(map(receiver.requests, ("/a", "/b", "/c"))), 60, "one gets nothing")
    all_have_some.set()
    wait_until(lambda: len(receiver.requests()) >= 300, 60, "not all of them come", broker.log)
    at = {name: heard_ids(receiver, f"/{name}") for name in "abc"}
    heard = Tally(one for some in at.values() for one in some)
    assert heard == Tally({item["id"]: 1 for item in found["items"]})


@pytest.mark.seed("S1-04")
def test_a_2xx_awaits_an_acknowledgement_that_completes_the_delivery(
    broker: Broker, receiver: Receiver
) -> None:
    for name, timeout_ms in (("heard", 60_000), ("unheard", 1000)):
        ack = {"mode": "callback", "timeout_ms": timeout_ms, "on_timeout": "retry"}
        values: dict[str, Any] = {"url": receiver.url(f"/{name}"), "event_types": ["acked"]}
        values |= {"ack": ack, "retry": [1], "max_attempts": 50}
        broker.call("PUT", f"/channels/calls/consumers/{name}", 201, json=values)
    headers = {"Hookstation-Event-Type": "acked"}
    broker.call("POST", "/channels/calls/messages", 202, data=b"x", headers=headers)

    def say(path: str) -> None:
        url = receiver.requests(path)[-1].header("Hookstation-Ack-Url")
        assert url is not None
        assert requests.post(url, timeout=60).status_code == 200

    def shown(name: str) -> list[tuple[str, int]]:
        path = f"/channels/calls/consumers/{name}/deliveries"
        items = broker.call("GET", path, 200)["items"]
        return [(one["state"], one["attempt_count"]) for one in items]

    wait_until(lambda: len(receiver.requests("/heard")) == 1, 60, "it does not come")
    say("/heard")
    wait_until(lambda: shown("heard") == [("Delivered", 1)], 30, "nobody heard it", broker.log)
    wait_until(lambda: len(receiver.requests("/unheard")) >= 2, 60, "it comes only once")
    first, second, *_ = receiver.requests("/unheard")
    assert first.header("webhook-id") == second.header("webhook-id")
    assert second.at - first.at > 0.9
    say("/unheard")
    wait_until(lambda: shown("unheard")[0][0] == "Delivered", 60, "nobody heard it", broker.log)
    assert len(receiver.requests("/heard")) == 1
