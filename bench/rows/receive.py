"""Receive: workers of a pull consumer take messages over HTTP and acknowledge them, in batches."""

import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from bench.adapters import BenchError, Route
from bench.broker import Hookstation
from bench.figures import Figure
from bench.load import Load, Plan
from bench.rows.throughput import BATCH, BATCH_CONNECTIONS, GROUPS
from bench.stage import Row, Stage, Values

TOGETHER = 10
"""Messages of one answer, and leases of one acknowledgement."""
WORKERS = 8
PATIENCE_S = 120.0
TIMEOUT_S = 30.0
LOOK_S = 0.05
ACK = "/api/v1/leases/ack"


@dataclass(slots=True)
class _Worker:
    """One connection that receives and acknowledges until nothing comes any more."""

    route: Route
    wanted: int
    done: list[str]
    """What all of them have acknowledged; a list takes appends from threads."""
    seconds: list[float] = field(default_factory=list)
    """How long each receive took that brought something."""

    def run(self) -> None:
        client = http.client.HTTPConnection(self.route.host, self.route.port, timeout=TIMEOUT_S)
        end = time.monotonic() + PATIENCE_S
        while len(self.done) < self.wanted and time.monotonic() < end:
            began = time.monotonic()
            found = self._post(client, self.route.path, {"max": TOGETHER, "lease_s": 120})
            messages = found["messages"]
            if not messages:
                time.sleep(LOOK_S)
                continue
            self.seconds.append(time.monotonic() - began)
            leases = [one["lease"] for one in messages]
            self.done += self._post(client, ACK, {"leases": leases})["done"]
        client.close()

    def _post(self, client: http.client.HTTPConnection, path: str, body: object) -> Any:
        client.request("POST", path, json.dumps(body).encode(), dict(self.route.headers))
        answer = client.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise BenchError(f"{path}: {answer.status} {content[:200]!r}")
        return json.loads(content)


def receive(stage: Stage) -> Values:
    """Messages that wait are taken ten at a time by eight workers, and acknowledged."""
    broker = stage.broker
    assert isinstance(broker, Hookstation)
    count = stage.sizes.messages
    stage.consumers()
    broker.register({"pull": {"mode": "pull"}})
    _fill(stage, broker, count)
    done: list[str] = []
    workers = [_Worker(broker.pull("pull"), count, done) for _ in range(WORKERS)]
    threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
    before, began = stage.look(), time.monotonic()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(LOOK_S)
        stage.tell(len(done), count)
    seconds, used = time.monotonic() - began, stage.look().since(before)
    if len(done) != count or len(set(done)) != count:
        raise BenchError(f"{len(set(done))} of {count} were acknowledged.")
    took = sorted(second for worker in workers for second in worker.seconds)
    per_message = {group: used[group] / count * 1e3 for group in used}
    return {
        "receive.rate": count / seconds,
        "receive.p50": took[len(took) // 2] * 1e3,
        "receive.cpu": sum(per_message.values()),
        **{f"receive.cpu_{group}": ms for group, ms in per_message.items()},
    }


def _fill(stage: Stage, broker: Hookstation, count: int) -> None:
    before = broker.depth()
    load = Load(Plan(broker.batch(), 1, count, BATCH_CONNECTIONS, together=BATCH))
    end = time.monotonic() + PATIENCE_S
    try:
        while load.is_running or broker.depth() < before + count:
            if time.monotonic() > end:
                raise BenchError("The messages do not get to the consumer.")
            time.sleep(LOOK_S)
    finally:
        load.close()


ROWS = (
    Row(
        "receive",
        (
            Figure(
                "receive.rate",
                "pull: received and acknowledged messages/s, ten at a time",
                "/s",
                must=3_000,
                aim=5_000,
                is_more_better=True,
                digits=0,
            ),
            Figure("receive.p50", "- a receive that brings ten, p50", "ms", must=10, aim=5),
            Figure("receive.cpu", "- CPU per message", "ms", digits=3),
            *(Figure(f"receive.cpu_{name}", f"- of it {name}", "ms", digits=3) for name in GROUPS),
        ),
        receive,
        ours_alone=True,
    ),
)
