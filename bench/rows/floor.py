"""Floor: what one delivered message costs at least, each part alone, and our share of it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import cpu, inside, tables
from bench.adapters import BenchError, Route, one
from bench.broker import ROOT
from bench.figures import Figure
from bench.flow import Following
from bench.load import Plan
from bench.rows import throughput
from bench.stage import Row, Stage, Values

REQUESTS = 10_000
PACED_S = 3.0
FIRST = 2 * 10**9
"""Numbers of the messages that nobody delivers: the books of the others begin at 1."""
START_S = 20.0


def floor(stage: Stage) -> Values:
    """Measure the parts while the broker rests; then what of our own cost they explain."""
    if "one.cpu" not in stage.values:
        stage.values.update(throughput.one(stage))
    ours, rate = stage.values["one.cpu"], stage.values["one.rate"]
    group = _group(stage)
    tables.ours(stage).stop()
    pids = stage.database.pids
    found = inside.run("statements", tables.ours(stage).environment, group, *pids, tell=stage.tell)
    server, paced_server = _server(stage, rate)
    post = _post(stage, REQUESTS, 0)
    paced_post = _post(stage, int(rate * PACED_S), rate)
    tables.ours(stage).start()
    alone = server + found["commit_one"] + post + found["claim"] + found["settle"]
    shared = alone - found["commit_one"] + found["commit_group"]
    paced = shared - server + paced_server - post + paced_post
    return {
        "floor.share": alone / ours,
        "floor.total": alone,
        "floor.server": server,
        "floor.commit_one": found["commit_one"],
        "floor.post": post,
        "floor.claim": found["claim"],
        "floor.settle": found["settle"],
        "floor.commit": found["commit_group"],
        "floor.shared": shared / ours,
        "floor.paced_server": paced_server,
        "floor.paced_post": paced_post,
        "floor.paced": paced / ours,
        "floor.group": float(group),
    }


def _group(stage: Stage) -> int:
    """Messages that shared a commit when most was going on: those accepted at one instant."""
    with tables.cursor(stage) as server:
        server.execute(f"USE {tables.name(stage)}")
        server.execute(
            "SELECT COUNT(*) / COUNT(DISTINCT accepted_at) FROM (SELECT accepted_at FROM"
            " channels_app_message ORDER BY id DESC LIMIT %s) AS latest",
            [stage.sizes.messages],
        )
        ((mean,),) = server.fetchall()
    return max(1, round(float(mean)))


def _server(stage: Stage, rate: float) -> tuple[float, float]:
    """CPU milliseconds of a request to the web server when nothing is behind it.

    As fast as it goes, and at a rate: one wake-up then serves fewer requests.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environment = tables.ours(stage).environment
    command = inside.run("server", environment, f"127.0.0.1:{port}")["command"]
    with _running(command, port) as pid:
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + "x" * 60}
        route = Route("127.0.0.1", port, "/api/v1/channels/nothing/messages", headers, one)
        _hand_in(stage, route, REQUESTS // 10)
        groups = {"web": [pid, *cpu.descendants(pid)]}
        costs = []
        for count, pace in ((REQUESTS, None), (int(rate * PACED_S), rate)):
            before = cpu.look(groups)
            _hand_in(stage, route, count, pace)
            costs.append(cpu.look(groups).since(before)["web"] / count * 1e3)
        return costs[0], costs[1]


@contextmanager
def _running(command: list[str], port: int) -> Iterator[int]:
    """The process of a web server that answers."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
    ) as process:
        try:
            end = time.monotonic() + START_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if time.monotonic() > end or process.poll() is not None:
                        raise BenchError("The web server did not start.") from None
                    time.sleep(0.1)
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def _hand_in(stage: Stage, route: Route, count: int, rate: float | None = None) -> None:
    with Following(Plan(route, FIRST, count, rate=rate), stage.sink.log, []) as following:
        flow = following.finish(stage.tell)
    if len(flow.sent) != count:
        raise BenchError("The web server did not answer everything.")


def _post(stage: Stage, count: int, rate: float) -> float:
    """CPU milliseconds of one request of bare libcurl to the sink (see bench/bare.py)."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.bare", stage.sink.url(tables.NOBODY), str(count), str(rate)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"The bare client failed: {done.stderr.strip().splitlines()[-1:]}")
    return float(done.stdout) / 1e3


def _figures() -> tuple[Figure, ...]:
    share = "share of the floor in CPU per delivered message, 1 consumer"
    milliseconds = (
        ("total", "- the floor: the sum of the following"),
        ("server", "- the web server answering nothing"),
        ("commit_one", "- one durable commit of a message and its body"),
        ("post", "- one POST of bare libcurl"),
        ("claim", "- claim statements, 100 rows at a time"),
        ("settle", "- settle statements, 100 rows at a time"),
        ("commit", "- beside it: the commit, shared as at saturation"),
        ("paced_server", "- beside it: the web server at the rate of the broker"),
        ("paced_post", "- beside it: the POST at the rate of the broker"),
    )
    shares = (
        ("shared", "- share if the commit is shared in the sum, too"),
        ("paced", "- share with the shared commit, and server and POST at that rate"),
    )
    return (
        Figure("floor.share", share, "", must=0.5, aim=0.7, is_more_better=True, digits=2),
        *(Figure(f"floor.{part}", title, "ms", digits=4) for part, title in milliseconds),
        *(Figure(f"floor.{part}", title, "", digits=2) for part, title in shares),
        Figure("floor.group", "- messages that shared a commit", "", digits=0),
    )


ROWS = (Row("floor", _figures(), floor, on_sqlite=False, ours_alone=True),)
