"""Measure the idle broker, and the least cost of a delivered message, part by part.

Each part of the floor is measured alone: the web server, statements, and POST requests.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench import internal, machine
from bench.adapters import BenchError, Route, one
from bench.broker import free_port
from bench.databases import ROOT
from bench.load import Following, Plan, connect
from bench.scenarios.latency import SLOW
from bench.scenarios.tables import UNWATCHED
from bench.scenarios.throughput import deliver_to_one
from bench.stage import Figure, Scenario, Stage, Values, cpu_figures, cpu_values, percentile

SETTLE_S = 2.0
"""Seconds for earlier work to finish."""
REQUESTS = 10_000
WARM_UP = 1_000
PACED_S = 3.0
WAITS = 500
"""Number of timed requests and commits."""
FIRST = 2 * 10**9
"""First number of messages without a broker; those of other measurements begin at 1."""
START_S = 20.0
APPLICATION = "bench.bare:application"
PATH = "/api/v1/channels/nothing/messages"
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer " + "x" * 60}


def idle(stage: Stage) -> Values:
    """Return CPU time while nothing is published, as a share of one core, and memory."""
    stage.consumers("take")
    time.sleep(SETTLE_S)
    start, before = time.monotonic(), stage.cpu_times()
    time.sleep(stage.sizes.idle_s)
    used = stage.cpu_times().since(before)
    percent = cpu_values(used, 100 / (time.monotonic() - start))
    memory = sum(machine.memory(pids) for pids in stage.broker.processes().values())
    return percent | {"memory": memory / 2**20}


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time and median duration of one request in milliseconds."""

    cpu: float
    p50: float


@contextmanager
def _idle_server(stage: Stage) -> Iterator[tuple[Route, int]]:
    """Run granian as the broker starts it, with nothing behind it; yields route and process id.

    Raises BenchError if it does not start.
    """
    route = Route("127.0.0.1", free_port(), PATH, HEADERS, one)
    found = internal.run(
        "statements.server_command",
        stage.hookstation.environment,
        bind=f"{route.host}:{route.port}",
        application=APPLICATION,
    )
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        found["command"], cwd=ROOT, stdout=quiet, stderr=quiet, process_group=0
    ) as process:
        end = time.monotonic() + START_S
        try:
            while True:
                try:
                    connect(route).close()
                    break
                except OSError:
                    if time.monotonic() > end or process.poll() is not None:
                        raise BenchError("The web server did not start.") from None
                    time.sleep(0.1)
            yield route, process.pid
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def _request(stage: Stage, route: Route, pid: int, count: int, rate: float | None = None) -> Cost:
    """Send `count` requests to that server, as fast as possible or `rate` per second.

    At a rate, a process handles fewer requests per wake-up.
    """
    groups = {"web": [pid, *machine.descendants(pid)]}
    before = machine.cpu_times(groups)
    plan = Plan(route, FIRST, count, rate=rate)
    with Following(plan, stage.sink.log, []) as following:
        flow = following.finish(stage.progress)
    if len(flow.sent) != count:
        raise BenchError("The web server did not answer everything.")
    used = machine.cpu_times(groups).since(before)["web"]
    return Cost(used / count * 1e3, percentile(flow.waits_ms(), 0.5))


def post(url: str, count: int, rate: float = 0.0) -> Cost:
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
    found = json.loads(done.stdout)
    return Cost(found["cpu"], percentile(found["took_ms"], 0.5))


def floor(stage: Stage) -> Values:
    """Measure the parts while the broker is idle, and compute their share of the broker's cost."""
    if "one.cpu" not in stage.values:
        stage.values |= {f"one.{name}": it for name, it in deliver_to_one(stage).items()}
    ours, rate = stage.values["one.cpu"], stage.values["one.rate"]
    group = _messages_per_commit(stage)
    stage.broker.stop()
    found = internal.run(
        "statements.measure_minimum",
        stage.hookstation.environment,
        stage.progress,
        group=group,
        paced=WAITS,
        rate=SLOW,
        pids=stage.database.pids,
    )
    paced = int(rate * PACED_S)
    with _idle_server(stage) as (route, pid):
        _request(stage, route, pid, WARM_UP)
        fast_web = _request(stage, route, pid, REQUESTS)
        paced_web = _request(stage, route, pid, paced, rate)
        slow_web = _request(stage, route, pid, WAITS, SLOW)
    url = stage.sink.url(UNWATCHED)
    fast_post, paced_post = post(url, REQUESTS), post(url, paced, rate)
    waits = (slow_web.p50, 2 * found["commit_p50"], post(url, WAITS, SLOW).p50)
    stage.broker.start()
    statements = found["claim"] + found["settle"]
    alone = fast_web.cpu + found["commit_one"] + fast_post.cpu + statements
    shared = fast_web.cpu + found["commit_group"] + fast_post.cpu + statements
    at_rate = paced_web.cpu + found["commit_group"] + paced_post.cpu + statements
    values = {
        "share": alone / ours,
        "total": alone,
        "server": fast_web.cpu,
        "commit_one": found["commit_one"],
        "post": fast_post.cpu,
        "claim": found["claim"],
        "settle": found["settle"],
        "commit": found["commit_group"],
        "shared": shared / ours,
        "paced_server": paced_web.cpu,
        "paced_post": paced_post.cpu,
        "paced": at_rate / ours,
        "group": float(group),
        "wait": sum(waits),
        "wait_server": waits[0],
        "wait_commits": waits[1],
        "wait_commit_p99": found["commit_p99"],
        "wait_post": waits[2],
    }
    if took := stage.values.get(f"latency{SLOW}.p50"):
        values["wait_times"] = took / sum(waits)
    return values


def _messages_per_commit(stage: Stage) -> int:
    """Return how many messages share a commit under load: those accepted at one instant."""
    # Sent for this purpose, since the last scenarios may have been slow deliberately.
    stage.deliver(stage.sizes.warm_up, stage.consumers("take"))
    with stage.database.cursor() as server:
        server.execute(
            "SELECT COUNT(*) / COUNT(DISTINCT accepted_at) FROM (SELECT accepted_at FROM"
            " channels_app_message ORDER BY id DESC LIMIT %s) AS latest",
            [stage.sizes.warm_up],
        )
        ((mean,),) = server.fetchall()
    return max(1, round(float(mean)))


IDLE = Scenario(
    "idle",
    idle,
    [
        Figure("cpu", "idle CPU of the whole broker and its database", "% of a core", 3.0, 1.0, 2),
        *cpu_figures("% of a core", 2),
        Figure("memory", "memory of all its processes after the scenarios above", "MiB"),
    ],
)
SHARE_TITLE = "share of the floor in CPU per delivered message, 1 consumer"
WAIT_TITLE = f"what a message waits for at least, {SLOW} messages/s, p50: the sum of the following"
FLOOR = Scenario(
    "floor",
    floor,
    [
        Figure("share", SHARE_TITLE, "", 0.5, 0.7, 2, "more"),
        Figure("total", "- the floor: the sum of the following", "ms", digits=4),
        Figure("server", "- the web server answering nothing", "ms", digits=4),
        Figure("commit_one", "- one durable commit of a message and its body", "ms", digits=4),
        Figure("post", "- one POST of bare libcurl", "ms", digits=4),
        Figure("claim", "- claim statements, 100 rows at a time", "ms", digits=4),
        Figure("settle", "- settle statements, 100 rows at a time", "ms", digits=4),
        Figure("commit", "- beside it: the commit, shared as at saturation", "ms", digits=4),
        Figure(
            "paced_server", "- beside it: the web server at the rate of the broker", "ms", digits=4
        ),
        Figure("paced_post", "- beside it: the POST at the rate of the broker", "ms", digits=4),
        Figure("shared", "- share if the commit is shared in the sum, too", "", digits=2),
        Figure(
            "paced",
            "- share with the shared commit, and server and POST at that rate",
            "",
            digits=2,
        ),
        Figure("group", "- messages that shared a commit", ""),
        Figure("wait", WAIT_TITLE, "ms", digits=2),
        Figure("wait_server", "- the web server answering nothing", "ms", digits=2),
        Figure("wait_commits", "- two durable commits, one after the other", "ms", digits=2),
        Figure("wait_post", "- one POST of bare libcurl", "ms", digits=2),
        Figure("wait_commit_p99", "- beside it: p99 of one such commit", "ms", digits=2),
        Figure("wait_times", "- a message of ours takes", "x of it", digits=1),
    ],
    on_sqlite=False,
    hookstation_only=True,
)
