"""Run the scenarios of clients/conformance with a client's driver against a real broker.

docs/clients/README.md describes the scenarios' steps and the protocol of drivers.
"""

import base64
import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from django.conf import settings
from standardwebhooks import Webhook

from channels_app.core.encryption import new_secret
from tests.support import node, toolchains
from tests.support.broker import Broker

ROOT = Path(settings.BASE_DIR)
FOLDER = ROOT / "clients/conformance"
DRIVERS: Mapping[str, Any] = json.loads((FOLDER / "drivers.json").read_text())
BUILDERS: Mapping[str, Callable[[], object]] = {
    "node": node.build_client,
    "go": toolchains.build_go,
    "go-grpc": toolchains.build_go_grpc,
    "java": toolchains.build_java,
    "java-grpc": toolchains.build_java_grpc,
}
"""By client: the function that builds its driver, if it is compiled. Raises
`toolchains.Missing`."""
KILL = {"run": "kill_broker"}
"""The step that kills the broker."""
STREAMED = {"receive", "ack", "nack", "extend", "release"}
"""Operations that a driver with a ``base`` does over a stream; for all others it is the base."""
SCENARIOS: Sequence[Any] = json.loads((FOLDER / "scenarios.json").read_text(encoding="utf-8"))
FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
PYTHON = os.environ.get("HOOKSTATION_CLIENT_PYTHON", sys.executable)
"""Interpreter of Python drivers: `make test-pythons` sets others that have the wheel installed."""
ANSWER_TIMEOUT_S = 180.0
"""Seconds to wait for a driver's response, and for messages to arrive."""
MAX_BODY_BYTES = 1_048_576
"""The broker's default, which the scenarios rely on."""
SIGNED_ID = "msg_06xvz43r2p400"
WITH_CONSUMER = {"register", "receive", "dead_letters"}
WITHOUT_CHANNEL = {
    *("message", "move", "cancel", "ack", "nack", "extend", "release", "replay_delivery", "verify"),
}


class Red(AssertionError):
    """A step's result differs from the scenario."""


class Skipped(Exception):
    """The scenario cannot run with this driver, or on this machine."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one scenario with one client."""

    colour: str
    """``green``, ``red`` or ``skipped``."""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.colour}: {self.reason}" if self.reason else self.colour


class Proxy:
    """A proxy between client and broker that loses requests or responses on demand."""

    def __init__(self, port: int) -> None:
        self.drop_requests = self.drop_answers = self.answer_busy = 0
        """Number of the next requests that are affected."""
        self.retry_after = 1
        self.answered: list[tuple[str, int]] = []
        """``X-Amz-Target`` and status of each request to which the broker responded."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                proxy._forward(self, port)

            do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = forward

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def _forward(self, handler: BaseHTTPRequestHandler, port: int) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        if self.drop_requests:
            self.drop_requests -= 1
            handler.close_connection = True
            return
        if self.answer_busy:
            self.answer_busy -= 1
            _answer(handler, 503, self._busy(), json.dumps(BUSY).encode())
            return
        headers = {
            name: value for name, value in handler.headers.items() if name.lower() != "connection"
        }
        broker = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
        try:
            broker.request(handler.command, handler.path, body or None, headers)
            with broker.getresponse() as answer:
                status, said, content = answer.status, answer.getheaders(), answer.read()
        except (OSError, http.client.HTTPException):
            handler.close_connection = True
            return
        finally:
            broker.close()
        self.answered.append((handler.headers.get("X-Amz-Target", ""), status))
        if self.drop_answers:
            self.drop_answers -= 1
            handler.close_connection = True
            return
        _answer(handler, status, said, content)

    def _busy(self) -> list[tuple[str, str]]:
        kind = ("Content-Type", "application/problem+json")
        return [kind, ("Retry-After", str(self.retry_after))]


BUSY = {
    "type": "urn:hookstation:problem:storage_unavailable",
    "title": "Service Unavailable",
    "status": 503,
    "code": "storage_unavailable",
    "detail": "The database does not answer.",
}
_FRAMING = {"content-length", "transfer-encoding", "connection", "date", "server"}


def _answer(
    handler: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], body: bytes
) -> None:
    handler.send_response(status)
    for name, value in headers:
        if name.lower() not in _FRAMING:
            handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def build_drivers(clients: Collection[str] = BUILDERS.keys()) -> Mapping[str, str]:
    """Build the compiled drivers of clients; returns by client why one cannot be built here."""
    lacking = {}
    for client in BUILDERS.keys() & set(clients):
        try:
            BUILDERS[client]()
        except toolchains.Missing as missing:
            lacking[client] = str(missing)
    return lacking


class Driver:
    """A running driver of a client."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        if sys.executable != PYTHON:
            environment = {k: v for k, v in environment.items() if k != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [PYTHON if part == "python" else part for part in command],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.hello: Mapping[str, Any] = self.ask("hello")["ok"]
        self.operations = set(self.hello.get("ops", ()))

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Return the driver's response: an object with ``ok`` or ``error``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"op": operation, **arguments}) + "\n"
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], ANSWER_TIMEOUT_S)[0]:
            raise Red(f"{operation}: no answer within {ANSWER_TIMEOUT_S} s")
        answer = self._process.stdout.readline()
        if not answer:
            raise Red(f"{operation}: the driver ended")
        return json.loads(answer)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):  # data that it no longer reads
                stream.close()
        self._process.wait()


class Suite:
    """A broker, and the scenarios that run against it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.proxy = Proxy(broker.port)
        self._idle: dict[str, Driver] = {}
        """Idle driver of each client, between two scenarios."""
        self._at_once: dict[str, dict[str, Result]] = {}
        """Results by client of each scenario that kills the broker."""
        self._played: dict[tuple[str, str], Result] = {}
        """Results by client and scenario of all others."""

    def close(self) -> None:
        """Stop the drivers and the proxy."""
        for driver in self._idle.values():
            driver.kill()
        self.proxy.close()

    def run(self, client: str, drivers: Mapping[str, Any]) -> dict[str, Result]:
        """Return the result of every scenario with one of these clients.

        A scenario without streams is played with the base of a client that has one.
        """
        results = {}
        base = drivers[client].get("base", client)
        for scenario in SCENARIOS:
            name = scenario["name"]
            if KILL not in scenario["steps"]:
                is_streamed = STREAMED & {step.get("op") for step in scenario["steps"]}
                player = client if is_streamed else base
                if (player, name) not in self._played:
                    self._played[player, name] = self.play(player, drivers[player], scenario)
                results[name] = self._played[player, name]
                continue
            if name not in self._at_once:
                self._at_once[name] = self.play_at_once(drivers, scenario)
            results[name] = self._at_once[name][client]
        return results

    def play_at_once(
        self, drivers: Mapping[str, Any], scenario: Mapping[str, Any]
    ) -> dict[str, Result]:
        """Return the results of one scenario with all clients, which share a kill of the broker.

        To start a broker for each client would take as long as all other scenarios.
        """
        results = dict.fromkeys(drivers, Result("green"))
        plays: dict[str, Play] = {}
        try:
            for client, description in drivers.items():
                channel = self._channel(client, scenario)
                plays[client] = Play(self, description, channel, self._idle.pop(client, None))
            for number, step in enumerate(scenario["steps"], 1):
                if step == KILL:
                    self.kill_broker()
                    continue
                for client, play in plays.items():
                    if results[client].colour == "green":
                        try:
                            play.step(step)
                        except Red as red:
                            results[client] = Result("red", f"step {number}, {red}")
        finally:
            for client, play in plays.items():
                if results[client].colour == "green":
                    self._idle[client] = play.driver
                else:
                    play.driver.kill()
        return results

    def kill_broker(self) -> None:
        """Kill all processes of the broker, and start it again."""
        assert self.broker.process is not None
        os.killpg(self.broker.process.pid, signal.SIGKILL)
        self.broker.process.wait()
        self.broker.start()

    def _channel(self, client: str, scenario: Mapping[str, Any]) -> str:
        """Make the channel of a client for a scenario; return its name."""
        channel = re.sub("[^a-z0-9]+", "-", f"{client} {scenario['name']}".lower())
        self.broker.call(
            "PUT", f"/channels/{channel}", 201, json={"max_body_bytes": MAX_BODY_BYTES}
        )
        return channel

    def play(
        self, client: str, description: Mapping[str, Any], scenario: Mapping[str, Any]
    ) -> Result:
        """Return the result of one scenario, run in a channel of its own."""
        channel = self._channel(client, scenario)
        try:
            with self._playing(client, description, channel) as play:
                for number, step in enumerate(scenario["steps"], 1):
                    try:
                        play.step(step)
                    except Red as red:
                        raise Red(f"step {number}, {red}") from None
        except Red as red:
            return Result("red", str(red))
        except Skipped as skipped:
            return Result("skipped", str(skipped))
        finally:
            self.proxy.drop_requests = self.proxy.drop_answers = self.proxy.answer_busy = 0
        return Result("green")

    @contextmanager
    def _playing(
        self, client: str, description: Mapping[str, Any], channel: str
    ) -> Iterator["Play"]:
        play = Play(self, description, channel, self._idle.pop(client, None))
        try:
            yield play
        except BaseException:
            play.driver.kill()
            raise
        if play.is_altered:
            play.driver.kill()
        else:
            self._idle[client] = play.driver


class Play:
    """A running scenario with one client."""

    def __init__(
        self, suite: Suite, description: Mapping[str, Any], channel: str, driver: Driver | None
    ) -> None:
        self.suite, self.channel = suite, channel
        self._description = description
        self._saved: dict[str, Any] = {}
        self._took_s = 0.0
        self.is_altered = False
        """Whether the driver's key or clock was changed."""
        self.driver = driver or self._start()

    def step(self, step: Mapping[str, Any]) -> None:
        """Run one step. Raises Red or Skipped."""
        words = {name: self._filled(value) for name, value in step.items()}
        if "run" in words:
            getattr(self, f"_run_{words.pop('run')}")(**words)
            return
        operation = words.pop("op")
        if operation not in self.driver.operations:
            raise Skipped(f"the driver has no {operation}")
        expected, refused = words.pop("expect", None), words.pop("refused", None)
        saved = words.pop("save", {})
        if operation == "receive" and "until" in words:
            answer = self._receive(**words)
        else:
            answer = self._ask(operation, words)
        if (refused is None) != ("ok" in answer):
            raise Red(f"{operation}: {_short(answer)}")
        found = answer["ok"] if refused is None else answer["error"]
        wanted = expected if refused is None else refused
        if wanted is not None and (fault := difference(wanted, found, operation)):
            raise Red(fault)
        self._saved |= {name: at(found, path) for name, path in saved.items()}

    def _ask(self, operation: str, words: dict[str, Any]) -> Any:
        if operation not in WITHOUT_CHANNEL:
            words.setdefault("channel", self.channel)
        if operation in WITH_CONSUMER:
            words.setdefault("consumer", "packing")
        if operation == "verify":
            words = _verified(**words)
        began = time.monotonic()
        answer = self.driver.ask(operation, **words)
        self._took_s = time.monotonic() - began
        return answer

    def _receive(self, until: int, settle: str = "", **words: Any) -> Any:
        """Receive until there are so many, settling each batch, if asked, before the next call."""
        found: list[Any] = []
        end = time.monotonic() + ANSWER_TIMEOUT_S
        while len(found) < until:
            if time.monotonic() > end:
                raise Red(
                    f"receive: {len(found)} of {until} messages came within {ANSWER_TIMEOUT_S} s"
                )
            answer = self._ask("receive", {"wait": 5, **words})
            if "error" in answer:
                return answer
            for message in answer["ok"]["messages"]:
                found.append(message)
                if settle and "error" in (said := self._ask(settle, {"lease": message["lease"]})):
                    return said
        return {"ok": {"messages": found}}

    def _filled(self, value: Any) -> Any:
        """Return the value with saved values inserted and long texts expanded."""
        if isinstance(value, str) and value.startswith("$"):
            return self._saved[value[1:]]
        if isinstance(value, list):
            return [self._filled(one) for one in value]
        if isinstance(value, dict):
            if "repeat" in value:
                return value["repeat"] * value["times"]
            return {name: self._filled(one) for name, one in value.items()}
        return value

    def _start(self, key: str = "", clock: int = 0) -> Driver:
        environment = {
            "HOOKSTATION_URL": self.suite.proxy.url,
            "HOOKSTATION_KEY": key or self.suite.broker.key,
            **self._description.get("environment", {}),
        }
        if self._description.get("grpc"):
            address = self.suite.broker.environment["HOOKSTATION_GRPC_ADDRESS"]
            environment["HOOKSTATION_GRPC_URL"] = f"grpc://{address}"
        if clock:
            if not FAKETIME:
                raise Skipped("this machine has no libfaketime")
            environment |= {
                "LD_PRELOAD": str(FAKETIME[0]),
                "FAKETIME": f"{clock:+d}",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        return Driver(self._description["command"], environment)

    # -- Steps of the runner ------------------------------------------------------------------

    def _run_wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def _run_waited(self, seconds: float) -> None:
        if self._took_s < seconds:
            raise Red(f"the client waited {self._took_s:.1f} s, which is less than {seconds} s")

    def _run_drop_requests(self, count: int) -> None:
        self.suite.proxy.drop_requests = count

    def _run_drop_answers(self, count: int) -> None:
        self.suite.proxy.drop_answers = count

    def _run_answer_busy(self, count: int, retry_after: int) -> None:
        self.suite.proxy.answer_busy, self.suite.proxy.retry_after = count, retry_after

    def _run_kill_driver(self) -> None:
        self._run_restart_driver()

    def _run_restart_driver(self, key: str = "", clock: int = 0) -> None:
        self.driver.kill()
        self.is_altered = bool(key or clock)
        self.driver = self._start(key, clock)
        ahead_s = self.driver.ask("now")["ok"] - time.time()
        if clock and abs(ahead_s - clock) > clock / 2:
            raise Skipped("the clock of this client cannot be turned")

    def _run_kill_broker(self) -> None:
        self.suite.kill_broker()

    def _run_publish(self, count: int, body: str = "{}") -> None:
        """Publish messages from outside the client."""
        items = [{"body": body}] * count
        self._call("POST", f"/channels/{self.channel}/messages/batch", 207, json=items)

    def _run_stored(self, count: int) -> None:
        found = self._call("GET", f"/channels/{self.channel}/messages?limit=200", 200)["items"]
        if len(found) != count:
            raise Red(f"{len(found)} messages are stored in place of {count}")

    def _run_due_in(self, id: str, **bounds: float) -> None:
        due = datetime.fromisoformat(self._call("GET", f"/messages/{id}", 200)["due_at"])
        seconds = (due - datetime.now(UTC)).total_seconds()
        if not bounds["from"] <= seconds <= bounds["to"]:
            raise Red(f"the message is due in {seconds:.0f} s, which is not in {bounds}")

    def _run_sign(
        self, body: str, save: str, age: float = 0, secrets: int = 1, wrong_secret: bool = False
    ) -> None:
        signers = [new_secret() for _ in range(secrets)]
        at_ = datetime.now(UTC) - timedelta(seconds=age)
        self._saved[save] = {
            "secret": new_secret() if wrong_secret else signers[-1],
            "body": body,
            "headers": {
                "webhook-id": SIGNED_ID,
                "webhook-timestamp": str(int(at_.timestamp())),
                "webhook-signature": " ".join(
                    Webhook(secret).sign(SIGNED_ID, at_, body) for secret in signers
                ),
            },
        }

    def _call(self, method: str, path: str, status: int, **options: Any) -> Any:
        return self.suite.broker.call(method, path, status, **options)


def _verified(signed: Mapping[str, Any], change: Mapping[str, str] | None = None) -> dict[str, Any]:
    changed = dict(change or {})
    body = changed.pop("body", signed["body"])
    return {
        "secret": signed["secret"],
        "headers": {**signed["headers"], **changed},
        "body_base64": base64.b64encode(body.encode()).decode(),
    }


def at(value: Any, path: str) -> Any:
    """Return the part of a value at a path such as ``messages.0.lease``."""
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def difference(wanted: Any, found: Any, place: str) -> str:
    """Return where a value differs, "" if nowhere. Objects may have additional members."""
    if isinstance(wanted, dict) and isinstance(found, list):
        if len(found) != wanted["count"]:
            return f"{place}: {len(found)} in place of {wanted['count']}"
        wanted = [wanted["each"]] * len(found) if "each" in wanted else found
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name, one in wanted.items():
            if name == "body" and "body_base64" in found:
                name, one = "body_base64", base64.b64encode(one.encode()).decode()
            if name not in found:
                return f"{place}: there is no {name} in {_short(found)}"
            if fault := difference(one, found[name], f"{place}.{name}"):
                return fault
        return ""
    if isinstance(wanted, list) and isinstance(found, list):
        if len(wanted) != len(found):
            return f"{place}: {len(found)} in place of {len(wanted)}: {_short(found)}"
        pairs = enumerate(zip(wanted, found, strict=True))
        faults = (difference(*pair, f"{place}.{number}") for number, pair in pairs)
        return next((fault for fault in faults if fault), "")
    if wanted != found:
        return f"{place}: {_short(found)} in place of {_short(wanted)}"
    return ""


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}..."


def page(matrix: Mapping[str, Mapping[str, Result]]) -> str:
    """Format the matrix as a page of the documentation."""
    lines = [
        "# Conformance of clients",
        "",
        "Each scenario of [`clients/conformance/scenarios.json`]"
        "(../../clients/conformance/scenarios.json), played",
        "with each client against a real broker. `make conformance` plays them and writes this",
        "page; [clients](README.md) says how, and how to add a client.",
        "",
        *(f"- `{name}`: {DRIVERS[name]['about']}." for name in matrix),
        "",
        f"| Scenario | Expected behaviour | {' | '.join(f'`{name}`' for name in matrix)} |",
        f"|---|---|{'---|' * len(matrix)}",
    ]
    for scenario in SCENARIOS:
        results = [str(matrix[name][scenario["name"]]) for name in matrix]
        lines.append(f"| {scenario['name']} | {scenario['about']} | {' | '.join(results)} |")
    return "\n".join(lines) + "\n"
