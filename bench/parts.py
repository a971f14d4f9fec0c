"""Measure the web server and the POST of one message, each alone in a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from bench import cpu, inside
from bench.adapters import BenchError, Route, one
from bench.broker import ROOT
from bench.figures import percentile
from bench.flow import Following
from bench.load import Plan
from bench.stage import Stage

FIRST = 2 * 10**9
"""First number of messages without a broker; the flows of other measurements begin at 1."""
START_S = 20.0
PATH = "/api/v1/channels/nothing/messages"
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer " + "x" * 60}


@dataclass(frozen=True, slots=True)
class Part:
    """CPU time and duration of one request in milliseconds."""

    cpu: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Server:
    """granian as the broker starts it, with an application that reads and responds with 202."""

    stage: Stage
    pid: int
    route: Route

    def take(self, count: int, rate: float | None = None) -> Part:
        """Send `count` requests, as fast as possible or `rate` per second.

        At a rate, a process handles fewer requests per wake-up.
        """
        groups = {"web": [self.pid, *cpu.descendants(self.pid)]}
        before = cpu.look(groups)
        plan = Plan(self.route, FIRST, count, rate=rate)
        with Following(plan, self.stage.sink.log, []) as following:
            flow = following.finish(self.stage.tell)
        if len(flow.sent) != count:
            raise BenchError("The web server did not answer everything.")
        cost = cpu.look(groups).since(before)["web"] / count * 1e3
        waits = flow.waits_ms()
        return Part(cost, percentile(waits, 0.5), percentile(waits, 0.99))


@contextmanager
def server(stage: Stage, environment: Mapping[str, str]) -> Iterator[Server]:
    """Run a web server with nothing behind it. Raises BenchError if it does not start."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = inside.run("server", environment, f"127.0.0.1:{port}")["command"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
    ) as process:
        try:
            _wait_for(process, port)
            yield Server(stage, process.pid, Route("127.0.0.1", port, PATH, HEADERS, one))
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def _wait_for(process: "subprocess.Popen[bytes]", port: int) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > end or process.poll() is not None:
                raise BenchError("The web server did not start.") from None
            time.sleep(0.1)
        else:
            return


def post(url: str, count: int, rate: float = 0.0) -> Part:
    """Send `count` requests of plain libcurl to `url` (bench/bare.py), `rate` per second.

    With rate 0, as fast as possible. Raises BenchError when one fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", "bench.bare", url, str(count), str(rate)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"The bare client failed: {done.stderr.strip().splitlines()[-1:]}")
    return Part(**json.loads(done.stdout))
