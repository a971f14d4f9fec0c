"""Measure the broker with very large tables.

Throughput while they fill with history, memory with a backlog, the pump's own statements compared
with small tables and beside scheduled messages, and pages that count or list dead letters.
"""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import requests

from bench import internal, machine
from bench.adapters import BenchError
from bench.stage import Figure, Scenario, Stage, Values

UNWATCHED = 1_000_000
"""Number of the sink's consumer for messages that no measurement watches."""
SMALL_WAITING = 40_000
"""Waiting rows in small tables, enough for all claims."""
STEPS = {"tiny": (100, 1_000), "quick": (1_000, 100_000), "full": (10_000, 1_000_000, 10_000_000)}
"""Messages of history by mode, each with two finished deliveries."""
TAKES = 3
"""Measurements at each step; the median counts."""
MEMORY_RATE = 50
"""Messages per second to a healthy consumer while memory is measured."""
MEMORY_POLL_S = 1.0
STATEMENT_SAMPLES, STATEMENT_ROUNDS = 30, 3
"""Both sides take turns, so that other load affects both."""
WORK = {
    "claim": "claim of 100 rows",
    "discover": "look for each consumer's next due row",
    "fanout": "fan-out of 100 messages",
}
CLAIMING = ("claim", "discover")
"""Parts of a pump's work that read the rows of one consumer by their time."""

Variables = Mapping[str, str]


def _fill(stage: Stage, variables: Variables | None = None, **numbers: int) -> float:
    """Create messages, a number of each kind; returns the seconds that it took.

    Finished ones were delivered to one consumer and are dead at another, so that there are as many
    dead letters. Raises BenchError when the counters do not add up afterwards.
    """
    found = internal.run(
        "history.fill",
        variables or stage.hookstation.environment,
        stage.progress,
        url=stage.sink.url(UNWATCHED),
        longest=stage.sizes.rows,
        **numbers,
    )
    if found["gap"]:
        raise BenchError(f"The counters differ from the rows by {found['gap']}.")
    return float(found["seconds"])


@contextmanager
def _small_tables(stage: Stage, name: str = "small_tables", **numbers: int) -> Iterator[Variables]:
    """Provide environment variables for processes that use small tables on the same server."""
    url = urlsplit(stage.database.url)._replace(path=f"/{name}").geturl()
    variables = {**stage.hookstation.environment, "DATABASE_URL": url}
    with stage.database.cursor() as server:
        server.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        try:
            _fill(stage, variables, waiting=SMALL_WAITING, failing=SMALL_WAITING // 10, **numbers)
            yield variables
        finally:
            server.execute(f"DROP DATABASE {name}")


def grow(stage: Stage) -> Values:
    """Return one consumer's throughput at each step, and its ratio to the first step."""
    values: Values = {}
    steps = STEPS[stage.sizes.name]
    for step in steps:
        seconds = _fill(stage, finished=step)
        takes = [_take(stage) for _ in range(TAKES)]
        values[f"rate_{step}"] = median(rate for rate, _ in takes)
        values[f"cpu_{step}"] = median(cpu_ms for _, cpu_ms in takes)
    values["fill"] = (steps[-1] - steps[-2]) / seconds
    for name in ("rate", "cpu"):
        values[name] = values[f"{name}_{steps[-1]}"] / values[f"{name}_{steps[0]}"]
    return values


def _take(stage: Stage) -> tuple[float, float]:
    """Return messages per second, and CPU milliseconds per message of broker and database."""
    consumers = stage.consumers("take")
    stage.deliver(stage.sizes.warm_up, consumers)
    before = stage.cpu_times()
    flow = stage.deliver(stage.sizes.messages // 2, consumers)
    used = sum(stage.cpu_times().since(before).values())
    return flow.rate, used / flow.deliveries * 1e3


def use_memory(stage: Stage) -> Values:
    """Measure a freshly started broker under light traffic, without and then with a backlog."""
    without = _memory_mib(stage)
    _fill(stage, waiting=stage.sizes.rows // 10)
    with_backlog = _memory_mib(stage)
    return {"growth": (with_backlog / without - 1) * 100, "without": without, "with": with_backlog}


def _memory_mib(stage: Stage) -> float:
    """Return the median over the second half of the time, after everything was used once."""
    stage.broker.stop()
    stage.broker.start()
    count = int(MEMORY_RATE * 2 * stage.sizes.idle_s)
    with stage.publish(count, stage.consumers("take"), rate=MEMORY_RATE) as following:
        sizes = []
        while not following.is_done():
            groups = stage.broker.processes()
            sizes.append(machine.memory([*groups["web"], *groups["worker"]]) / 2**20)
            stage.progress(following.flow.deliveries, count)
            time.sleep(MEMORY_POLL_S)
        following.finish(stage.progress)
    return median(sizes[len(sizes) // 2 :])


def scale(stage: Stage) -> Values:
    """Create a backlog, and one at a broken consumer, then measure without the broker."""
    rows = stage.sizes.rows
    stage.broker.stop()
    _fill(stage, finished=rows, waiting=rows // 10, failing=rows // 100)
    with _small_tables(stage) as variables:
        small, large = _measure_pump(stage, variables, stage.hookstation.environment)
    stage.broker.start()
    values: Values = {}
    for work in WORK:
        values[work] = large[f"{work}_ms"] / small[f"{work}_ms"]
        for name in (f"{work}_ms", f"{work}_reads"):
            values[name], values[f"{name}_small"] = large[name], small[name]
    return values


def schedule(stage: Stage) -> Values:
    """Create scheduled messages beside due ones, then measure without the broker."""
    rows = stage.sizes.rows // 10
    stage.broker.stop()
    with (
        _small_tables(stage) as small,
        _small_tables(stage, "scheduled_tables", scheduled=rows) as scheduled,
    ):
        without, beside = _measure_pump(stage, small, scheduled)
    stage.broker.start()
    values: Values = {"rows": rows}
    for work in CLAIMING:
        name = f"{work}_ms"
        values[work] = beside[name] / without[name]
        values[name], values[f"{name}_without"] = beside[name], without[name]
        values[f"{work}_reads"] = beside[f"{work}_reads"]
    return values


def _measure_pump(stage: Stage, *sides: Variables) -> list[Values]:
    """Return medians of the cost of the pump's statements in the tables of each side."""
    rounds = [
        [
            internal.run("statements.measure_pump", side, stage.progress, samples=STATEMENT_SAMPLES)
            for side in sides
        ]
        for _ in range(STATEMENT_ROUNDS)
    ]
    by_side = zip(*rounds, strict=True)
    return [{name: median(it[name] for it in each) for name in each[0]} for each in by_side]


SAMPLES, PAGE_WARM_UP = 9, 2
DEEP = 10
"""Pages followed in the API's list to reach the deep one."""
TIMEOUT_S = 60.0
NAME, PASSWORD = "bench", "for-the-time-of-the-measurement"
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')
LOST = "/api/v1/channels/history/consumers/lost"
"""The consumer of bench/internal/history.py whose deliveries are all dead."""
LIST = "/admin/delivery/delivery/"
PORTAL = f"/portal/{NAME}/webhooks/"
HEALTH = "webhook_health"
"""Counts no dead letters; measured for comparison."""
OWNERSHIP = f"""
from django.contrib.auth.models import User
from channels_app.models import Channel, Consumer, Membership, Team
if not User.objects.filter(username={NAME!r}).exists():
    person = User.objects.create_superuser({NAME!r}, password={PASSWORD!r})
    team = Team.objects.create(slug={NAME!r}, name={NAME!r})
    Membership.objects.create(team=team, user=person, role="owner")
    Channel.objects.filter(slug="history").update(exposure="external")
    Consumer.objects.filter(channel__slug="history").update(team=team)
"""
"""One superuser, whose team owns the consumers with history."""
PAGES = {
    "overview": ("console: overview", "/admin/"),
    "newest": ("console: deliveries", LIST),
    "list": ("console: dead letters", f"{LIST}?state=dead"),
    "last": ("console: dead letters, last page", f"{LIST}?state=dead&p=19"),
    "outcome": ("console: dead letters of one outcome", f"{LIST}?state=dead&outcome=server_error"),
    "client": ("console: dead letters of one consumer", f"{LIST}?state=dead&q=lost"),
    "messages": ("console: messages", "/admin/channels_app/message/"),
    "attempts": ("console: attempts", "/admin/delivery/attempt/"),
    "consumers": ("console: consumers", "/admin/channels_app/consumer/"),
    "counters": ("console: counters", "/admin/delivery/counter/"),
    "webhooks": ("portal: webhooks of a team", PORTAL),
    "webhook": ("portal: deliveries of a webhook", f"{PORTAL}history/lost/"),
    "webhook_dead": ("portal: dead letters of a webhook", f"{PORTAL}history/lost/dead/"),
    "webhook_none": (
        "portal: dead letters of a webhook, none match",
        f"{PORTAL}history/lost/dead/?outcome=tls_error",
    ),
    HEALTH: ("portal: health of a webhook", f"{PORTAL}history/lost/health/"),
    "api_consumer": ("API: consumer with its counts", LOST),
    "api_list": ("API: dead letters", f"{LOST}/dead-letters"),
    "api_deep": ("API: dead letters, a page further on", ""),
    "api_outcome": (
        "API: dead letters of one outcome",
        f"{LOST}/dead-letters?outcome=server_error",
    ),
    "api_none": ("API: dead letters, none match", f"{LOST}/dead-letters?outcome=tls_error"),
    "metrics": ("/metrics", "/metrics"),
    "ready": ("/readyz", "/readyz"),
}
"""Title and URL by the name of a figure."""


def count_dead_letters(stage: Stage) -> Values:
    """Request each page repeatedly, with a browser's session or an API key."""
    _fill(stage, finished=stage.sizes.rows)
    base = stage.hookstation.address
    browser, program = _log_in(stage, base), requests.Session()
    program.trust_env = False
    key = stage.hookstation.admin_key("bench-reader", "--all-channels").strip()
    program.headers["Authorization"] = f"Bearer {key}"
    values: Values = {}
    most_reads = 0
    with stage.database.cursor() as server:
        for place, (page, (_, path)) in enumerate(PAGES.items(), start=1):
            client = program if page.startswith("api_") else browser
            url = base + (path or _deep_page(program, base))
            samples = [_get(client, url, server) for _ in range(PAGE_WARM_UP + SAMPLES)]
            values[page] = median(ms for ms, _ in samples[PAGE_WARM_UP:])
            # The broker's processes read some rows meanwhile, so the lowest sample is the page's
            # own.
            most_reads = max(most_reads, min(reads for _, reads in samples[PAGE_WARM_UP:]))
            stage.progress(place, len(PAGES))
    slowest = max(ms for page, ms in values.items() if page != HEALTH)
    return values | {"slowest": slowest, "reads": most_reads}


def _get(client: requests.Session, url: str, server: Any) -> tuple[float, int]:
    """Return milliseconds until the complete response, and rows that the server read for it."""
    before = _rows_read(server)
    start = time.perf_counter()
    response = client.get(url, timeout=TIMEOUT_S)
    passed = time.perf_counter() - start
    if not response.ok or "/login/" in response.url:
        raise BenchError(f"{response.url}: {response.status_code}")
    return passed * 1000, _rows_read(server) - before


def _rows_read(server: Any) -> int:
    server.execute("SHOW GLOBAL STATUS LIKE 'Handler_read%'")
    return sum(int(number) for _, number in server.fetchall())


def _log_in(stage: Stage, base: str) -> requests.Session:
    """Return a session logged in as superuser."""
    stage.hookstation.manage("shell", "-c", OWNERSHIP)
    browser = requests.Session()
    browser.trust_env = False
    page = browser.get(f"{base}/accounts/login/", timeout=TIMEOUT_S)
    token = TOKEN.search(page.text)
    if token is None:
        raise BenchError("The login form has no token.")
    values = {"login": NAME, "password": PASSWORD, "csrfmiddlewaretoken": token[1]}
    browser.post(page.url, data=values, headers={"Referer": page.url}, timeout=TIMEOUT_S)
    return browser


def _deep_page(program: requests.Session, base: str) -> str:
    """Return the path of a page that is reached by following the list."""
    cursor = ""
    for _ in range(DEEP):
        response = program.get(f"{base}{LOST}/dead-letters{cursor}", timeout=TIMEOUT_S).json()
        if response["next"] is None:
            break
        cursor = f"?cursor={response['next']}"
    return f"{LOST}/dead-letters{cursor}"


GROWTH = Scenario(
    "growth",
    grow,
    [
        Figure("rate", "throughput with the longest history, 1 consumer", "x of the shortest"),
        Figure("cpu", "- CPU per message", "x"),
        *(
            figure
            for step in sorted({step for steps in STEPS.values() for step in steps})
            for figure in (
                Figure(f"rate_{step}", f"- {step:,} messages of history", "/s"),
                Figure(f"cpu_{step}", "- CPU per message then", "ms", digits=3),
            )
        ),
        Figure(
            "fill",
            "- history made at (two deliveries and attempts with each message)",
            "messages/s",
        ),
    ],
    in_quick=False,
    on_sqlite=False,
    hookstation_only=True,
)
MEMORY_TITLE = "memory of web and workers with a tenth of the large table's rows waiting"
MEMORY = Scenario(
    "memory",
    use_memory,
    [
        Figure("growth", MEMORY_TITLE, "% more", must=20.0, aim=5.0),
        Figure("without", "- without", "MiB", digits=1),
        Figure("with", "- with", "MiB", digits=1),
    ],
    in_quick=False,
    on_sqlite=False,
    hookstation_only=True,
)
SCALE = Scenario(
    "scale",
    scale,
    [
        figure
        for work, title in WORK.items()
        for figure in (
            Figure(work, f"{title}: large tables", "x of small ones", must=2.0, aim=1.2),
            Figure(f"{work}_ms", "- in large tables", "ms", digits=2),
            Figure(f"{work}_ms_small", "- in small tables", "ms", digits=2),
            Figure(f"{work}_reads", "- rows read for each one, large tables", "", digits=1),
            Figure(f"{work}_reads_small", "- rows read for each one, small tables", "", digits=1),
        )
    ],
    on_sqlite=False,
    hookstation_only=True,
)
SCHEDULED = Scenario(
    "scheduled",
    schedule,
    [
        Figure("rows", "messages that are due tomorrow", ""),
        *(
            figure
            for work in CLAIMING
            for figure in (
                Figure(work, f"{WORK[work]}: beside them", "x without", must=2.0, aim=1.2),
                Figure(f"{work}_ms", "- beside them", "ms", digits=2),
                Figure(f"{work}_ms_without", "- without", "ms", digits=2),
                Figure(f"{work}_reads", "- rows read for each one, beside them", "", digits=1),
            )
        ),
    ],
    on_sqlite=False,
    hookstation_only=True,
)
DEAD_LETTERS_TITLE = "slowest page or answer that counts or lists dead letters"
DEAD_LETTERS = Scenario(
    "dead",
    count_dead_letters,
    [
        Figure("slowest", DEAD_LETTERS_TITLE, "ms", must=50.0, aim=10.0),
        Figure("reads", "- most rows that the server reads for one", ""),
        *(Figure(page, f"- {title}", "ms") for page, (title, _) in PAGES.items()),
    ],
    on_sqlite=False,
    hookstation_only=True,
)
