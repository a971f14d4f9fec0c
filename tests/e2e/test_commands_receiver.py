"""``manage.py receiver`` as a real process: it verifies, fails on request, and stops cleanly."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pytest
import requests

from channels_app.core.encryption import decode_secret, new_secret
from delivery.core import signing
from delivery.management import receiver
from tests.support import ports

ROOT = Path(__file__).resolve().parents[2]
SECRET = new_secret()


class Running:
    """The running command, its URL, and the lines it prints."""

    def __init__(self, *arguments: str) -> None:
        bind = f"127.0.0.1:{ports.claim()}"
        # The command needs no secret key and no settings.
        without = {"SECRET_KEY", "DJANGO_SETTINGS_MODULE"}
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "receiver", "--bind", bind, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={name: text for name, text in os.environ.items() if name not in without},
        )
        self._lines: Queue[str] = Queue()
        Thread(target=self._read, daemon=True).start()
        self.url = self.line().split()[2]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def line(self) -> str:
        """Return the next line of its output."""
        return self._lines.get(timeout=60)

    def silent(self) -> bool:
        """Whether all printed lines were read."""
        try:
            self._lines.get_nowait()
        except Empty:
            return True
        return False

    def post(self, path: str, body: bytes = b"{}", /, **headers: str) -> requests.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return requests.post(self.url + path, data=body, headers=named, timeout=60)


def signed(body: bytes, secret: str = SECRET, message_id: str = "msg_1") -> dict[str, str]:
    now = int(time.time())
    return {
        "webhook_id": message_id,
        "webhook_timestamp": str(now),
        "webhook_signature": signing.sign([decode_secret(secret)], message_id, now, body),
    }


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    consumer = Running("--secret", f"/orders={SECRET}")
    yield consumer
    consumer.process.kill()
    with consumer.process:
        consumer.process.wait()


def test_a_signed_request_is_accepted_and_logged_in_one_line(running: Running) -> None:
    headers = {"hookstation_event_type": "order.created", "hookstation_attempt": "2"}

    answer = running.post("/orders", b'{"a":1}', **signed(b'{"a":1}'), **headers)

    line = running.line()
    assert answer.status_code == 200
    assert " ".join(line[8:].split()) == "200 /orders order.created try 2 signed 7 B msg_1"
    assert len(line) <= 80
    assert "\x1b" not in line  # no colours in a pipe


@pytest.mark.parametrize(
    ("body", "secret"), [(b"changed", SECRET), (b"sent", new_secret())], ids=["body", "secret"]
)
def test_a_forged_request_is_refused(running: Running, body: bytes, secret: str) -> None:
    answer = running.post("/orders", body, **signed(b"sent", secret))

    assert answer.status_code == 401
    assert "No signature matches" in answer.text
    assert "FORGED?" in running.line()


def test_a_path_without_a_secret_is_not_checked(running: Running) -> None:
    assert running.post("/healthy").status_code == 200
    assert "signed" not in running.line()


def test_a_repeated_message_is_marked(running: Running) -> None:
    headers = signed(b"{}", message_id="msg_twice")

    for _ in range(2):
        assert running.post("/orders", **headers).status_code == 200

    assert not running.line().endswith("again")
    assert running.line().endswith("again")


def test_path_failing_responds_with_the_given_status(running: Running) -> None:
    answer = running.post("/failing?status=503&retry_after=7")

    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "7"
    running.line()


def test_path_failing_can_apply_to_event_types_until_a_replay(running: Running) -> None:
    path = "/failing?types=order.cancelled,stock.low&until=replay"
    kinds = {"order.paid": 200, "order.cancelled": 500, "stock.low": 500}
    for kind, status in kinds.items():
        headers = {"Hookstation-Event-Type": kind}
        assert running.post(path, **headers).status_code == status
        headers["Hookstation-Replay"] = "true"
        assert running.post(path, **headers).status_code == 200
    for _ in range(6):
        running.line()


def test_path_recovering_counts_per_message(running: Running) -> None:
    statuses = {
        message: [
            running.post("/recovering?after=2", webhook_id=message).status_code for _ in range(3)
        ]
        for message in ("msg_a", "msg_b")
    }

    assert statuses == {"msg_a": [500, 500, 200], "msg_b": [500, 500, 200]}
    for _ in range(6):
        running.line()


def test_path_slow_delays_and_path_hang_never_responds(running: Running) -> None:
    started = time.monotonic()
    assert running.post("/slow?ms=150").status_code == 200
    assert time.monotonic() - started >= 0.15
    running.line()

    with pytest.raises(requests.Timeout):
        requests.post(running.url + "/hang", data=b"x", timeout=0.3)


def test_one_connection_serves_many_requests(running: Running) -> None:
    with requests.Session() as session:
        for _ in range(50):
            assert session.post(running.url + "/many", data=b"x", timeout=60).text == "ok\n"
            running.line()


def test_stats_count_by_path(running: Running) -> None:
    running.post("/counted")
    running.line()

    stats = json.loads(requests.get(running.url + "/stats", timeout=60).text)

    assert stats["/counted"] == {"requests": 1, "taken": 1, "valid": 0, "invalid": 0, "repeated": 0}


def test_a_body_of_unknown_length_is_refused(running: Running) -> None:
    answer = requests.post(running.url + "/x", data=iter([b"chunk"]), timeout=60)

    assert answer.status_code == 411
    assert running.silent()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_receiver_stops_at_a_signal_despite_hanging_requests(number: signal.Signals) -> None:
    consumer = Running()
    consumer.post("/a")
    with pytest.raises(requests.Timeout):
        requests.post(consumer.url + "/hang", data=b"x", timeout=0.2)

    consumer.process.send_signal(number)

    with consumer.process:
        assert consumer.process.wait(10) == 0
    assert consumer.line().split()[2] == "/a"
    assert consumer.line() == "Stopped after 1 request."


def test_secrets_are_read_from_lines() -> None:
    secrets = receiver.parse_secrets(["# comment", "", f" orders = {SECRET} "])

    assert secrets == {"/orders": SECRET}


@pytest.mark.parametrize(
    ("line", "told"), [("orders", "Secret 1 is not"), ("/orders=whsec_x", "Secret 1, for /orders")]
)
def test_an_invalid_secret_is_named_by_position_and_not_shown(line: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        receiver.parse_secrets([line])
    assert "whsec_x" not in str(caught.value)


def test_receiver_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "REMEMBERED", 3)
    consumer = receiver.ReceiverState()

    assert [consumer.take("/a", message) for message in "abcdb"] == [False] * 4 + [True]
    assert consumer.take("/a", "a") is False  # the oldest one is forgotten
