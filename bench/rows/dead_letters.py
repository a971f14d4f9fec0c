"""Measure pages and API responses that count or list dead letters, with very many of them."""

import re
import time
from statistics import median
from typing import Any

import requests

from bench import tables
from bench.adapters import BenchError
from bench.figures import Figure
from bench.stage import Row, Stage, Values

SAMPLES = 9
WARM_UP = 2
DEEP = 10
"""Pages followed in the API's list to reach the deep one."""
TIMEOUT_S = 60.0
NAME, PASSWORD = "bench", "for-the-time-of-the-measurement"
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')
API = "/api/v1/channels/history/consumers/lost"
"""The consumer of bench/inside/history.py whose deliveries are all dead."""
LIST = "/admin/delivery/delivery/"
PORTAL = f"/portal/{NAME}/webhooks/"
PICTURE = "webhook_health"
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
    PICTURE: ("portal: health of a webhook", f"{PORTAL}history/lost/health/"),
    "api_consumer": ("API: consumer with its counts", API),
    "api_list": ("API: dead letters", f"{API}/dead-letters"),
    "api_deep": ("API: dead letters, a page further on", ""),
    "api_outcome": ("API: dead letters of one outcome", f"{API}/dead-letters?outcome=server_error"),
    "api_none": ("API: dead letters, none match", f"{API}/dead-letters?outcome=tls_error"),
    "metrics": ("/metrics", "/metrics"),
    "ready": ("/readyz", "/readyz"),
}
"""Title and URL by the suffix of a figure's key."""


def count(stage: Stage) -> Values:
    """Request each page repeatedly, with a browser's session or an API key."""
    tables.fill(stage, finished=stage.sizes.rows)
    base = f"http://127.0.0.1:{tables.ours(stage).port}"
    console, program = _console(stage, base), _program(stage)
    found: dict[str, float] = {}
    greediest = 0.0
    with tables.cursor(stage) as server:
        for place, (page, (_, path)) in enumerate(PAGES.items(), start=1):
            client = program if page.startswith("api_") else console
            address = base + (path or _deep(program, base))
            samples = [_ask(client, address, server) for _ in range(WARM_UP + SAMPLES)][WARM_UP:]
            found[page] = median(ms for ms, _ in samples)
            # The broker's processes read some rows meanwhile, so the lowest sample is the page's
            # own.
            greediest = max(greediest, min(reads for _, reads in samples))
            stage.tell(place, len(PAGES))
    return {
        "dead.slowest": max(ms for page, ms in found.items() if page != PICTURE),
        "dead.reads": greediest,
        **{f"dead.{page}": ms for page, ms in found.items()},
    }


def _ask(client: requests.Session, address: str, server: Any) -> tuple[float, int]:
    """Return milliseconds until the complete response, and rows that the server read for it."""
    before = _reads(server)
    start = time.perf_counter()
    answer = client.get(address, timeout=TIMEOUT_S)
    passed = time.perf_counter() - start
    if not answer.ok or "/login/" in answer.url:
        raise BenchError(f"{answer.url}: {answer.status_code}")
    return passed * 1000, _reads(server) - before


def _reads(server: Any) -> int:
    server.execute("SHOW GLOBAL STATUS LIKE 'Handler_read%'")
    return sum(int(number) for _, number in server.fetchall())


def _console(stage: Stage, base: str) -> requests.Session:
    """Return a session logged in as superuser."""
    tables.ours(stage).manage("shell", "-c", OWNERSHIP)
    client = requests.Session()
    client.trust_env = False
    page = client.get(f"{base}/accounts/login/", timeout=TIMEOUT_S)
    token = TOKEN.search(page.text)
    if token is None:
        raise BenchError("The login form has no token.")
    values = {"login": NAME, "password": PASSWORD, "csrfmiddlewaretoken": token[1]}
    client.post(page.url, data=values, headers={"Referer": page.url}, timeout=TIMEOUT_S)
    return client


def _program(stage: Stage) -> requests.Session:
    client = requests.Session()
    client.trust_env = False
    words = ("create_api_key", "bench-reader", "--scope", "admin", "--all-channels")
    key = tables.ours(stage).manage(*words).strip()
    client.headers["Authorization"] = f"Bearer {key}"
    return client


def _deep(program: requests.Session, base: str) -> str:
    """Return the path of a page that is reached by following the list."""
    cursor = ""
    for _ in range(DEEP):
        answer = program.get(f"{base}{API}/dead-letters{cursor}", timeout=TIMEOUT_S).json()
        if answer["next"] is None:
            break
        cursor = f"?cursor={answer['next']}"
    return f"{API}/dead-letters{cursor}"


def _figures() -> tuple[Figure, ...]:
    title = "slowest page or answer that counts or lists dead letters"
    return (
        Figure("dead.slowest", title, "ms", must=50.0, aim=10.0),
        Figure("dead.reads", "- most rows that the server reads for one", "", digits=0),
        *(Figure(f"dead.{page}", f"- {title}", "ms") for page, (title, _) in PAGES.items()),
    )


ROWS = (Row("dead", _figures(), count, on_sqlite=False, ours_alone=True),)
