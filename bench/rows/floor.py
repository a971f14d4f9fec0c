"""Measure the least cost of a delivered message, part by part, and compare it with the broker's."""

from collections.abc import Mapping

from bench import inside, parts, tables
from bench.figures import Figure
from bench.rows import latency, throughput
from bench.stage import Row, Stage, Values

REQUESTS = 10_000
WARM_UP = 1_000
PACED_S = 3.0
WAITS = 500
"""Number of timed requests and commits."""


def floor(stage: Stage) -> Values:
    """Measure the parts while the broker is idle, and compute their share of the broker's cost."""
    if "one.cpu" not in stage.values:
        stage.values.update(throughput.one(stage))
    ours, rate = stage.values["one.cpu"], stage.values["one.rate"]
    group = _group(stage)
    tables.ours(stage).stop()
    pids = stage.database.pids
    environment, calm = tables.ours(stage).environment, latency.SLOW
    found = inside.run("statements", environment, group, WAITS, calm, *pids, tell=stage.tell)
    with parts.server(stage, environment) as server:
        server.take(WARM_UP)
        servers = server.take(REQUESTS), server.take(int(rate * PACED_S), rate)
        waiting = server.take(WAITS, calm)
    url = stage.sink.url(tables.NOBODY)
    posts = parts.post(url, REQUESTS), parts.post(url, int(rate * PACED_S), rate)
    waits = (waiting.p50, 2 * found["commit_p50"], parts.post(url, WAITS, calm).p50)
    tables.ours(stage).start()
    alone = servers[0].cpu + found["commit_one"] + posts[0].cpu + found["claim"] + found["settle"]
    shared = alone - found["commit_one"] + found["commit_group"]
    paced = shared - servers[0].cpu + servers[1].cpu - posts[0].cpu + posts[1].cpu
    return {
        "floor.share": alone / ours,
        "floor.total": alone,
        "floor.server": servers[0].cpu,
        "floor.commit_one": found["commit_one"],
        "floor.post": posts[0].cpu,
        "floor.claim": found["claim"],
        "floor.settle": found["settle"],
        "floor.commit": found["commit_group"],
        "floor.shared": shared / ours,
        "floor.paced_server": servers[1].cpu,
        "floor.paced_post": posts[1].cpu,
        "floor.paced": paced / ours,
        "floor.group": float(group),
        "floor.wait": sum(waits),
        "floor.wait_server": waits[0],
        "floor.wait_commits": waits[1],
        "floor.wait_commit_p99": found["commit_p99"],
        "floor.wait_post": waits[2],
        **_latency(stage.values, sum(waits)),
    }


def _latency(values: Mapping[str, float], least_ms: float) -> Values:
    """Return a message's latency in the row of latency as a multiple of the least."""
    took = values.get(f"latency{latency.SLOW}.p50")
    return {} if took is None else {"floor.wait_times": took / least_ms}


def _group(stage: Stage) -> int:
    """Return how many messages share a commit under load: those accepted at one instant."""
    # Sent for this purpose, since the last rows may have been slow deliberately.
    stage.run(stage.sizes.warm_up, stage.consumers("take"))
    with tables.cursor(stage) as server:
        server.execute(f"USE {tables.name(stage)}")
        server.execute(
            "SELECT COUNT(*) / COUNT(DISTINCT accepted_at) FROM (SELECT accepted_at FROM"
            " channels_app_message ORDER BY id DESC LIMIT %s) AS latest",
            [stage.sizes.warm_up],
        )
        ((mean,),) = server.fetchall()
    return max(1, round(float(mean)))


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
    least = f"what a message waits for at least, {latency.SLOW} messages/s, p50"
    waits = (
        ("wait", f"{least}: the sum of the following"),
        ("wait_server", "- the web server answering nothing"),
        ("wait_commits", "- two durable commits, one after the other"),
        ("wait_post", "- one POST of bare libcurl"),
        ("wait_commit_p99", "- beside it: p99 of one such commit"),
    )
    return (
        Figure("floor.share", share, "", must=0.5, aim=0.7, is_more_better=True, digits=2),
        *(Figure(f"floor.{part}", title, "ms", digits=4) for part, title in milliseconds),
        *(Figure(f"floor.{part}", title, "", digits=2) for part, title in shares),
        Figure("floor.group", "- messages that shared a commit", "", digits=0),
        *(Figure(f"floor.{part}", title, "ms", digits=2) for part, title in waits),
        Figure("floor.wait_times", "- a message of ours takes", "x of it", digits=1),
    )


ROWS = (Row("floor", _figures(), floor, on_sqlite=False, ours_alone=True),)
