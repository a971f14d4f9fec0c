"""Run load with difficult consumers and random kills, then check every message.

`python -m bench.soak --help` lists the options.
"""

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Self

import requests
from rich.console import Console
from rich.table import Table

from bench import console, databases, machine
from bench.adapters import BenchError, Progress, Route, body
from bench.broker import Hookstation
from bench.databases import KINDS, Kind
from bench.sink import Sink

CONSUMERS = {
    "fast": "take",
    "slow": "sluggish",
    "failing": "failing",
    "hanging": "hanging",
    "flapping": "flapping",
    "garbage": "garbage",
}
"""Behavior in the sink by name; the place in this table is the number in the sink."""
SETTINGS = {"timeout_ms": 2000, "retry": [1, 2, 4], "max_attempts": 6, "max_in_flight": 32}
PRODUCERS = 8
RETRY_S = 0.2
MAX_RETRY_S = 300.0
"""Seconds for which a message is repeated before the soak test fails."""
POLL_S = 2.0
DRAIN_S = 240.0
KILL_WEIGHTS = {
    "pump": 6,
    "web process": 5,
    "maintenance": 3,
    "worker": 2,
    "web": 1,
    "cluster": 1,
    "prober": 1,
    "reaper": 1,
    "supervisor": 1,
}
"""Relative frequency with which each kind of process is killed."""
EPILOG = """
The real broker under a steady load, with consumers that answer fast, slowly, wrongly, garbage or
not at all, while processes are killed at random. In the end every acknowledged message must have
come to each consumer or be a dead letter with a reason, and `manage.py reconcile` must find no
fault.

  python -m bench.soak                                 30 minutes on each database
  python -m bench.soak --minutes 5 --database sqlite
  python -m bench.soak --seed 4711                     the kills of an earlier run
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak test and print the results. Returns 1 if it failed."""
    parser = console.parser(
        "python -m bench.soak",
        "Load, difficult consumers and random kills; then check every message.",
        EPILOG,
    )
    parser.add_argument("--minutes", type=float, default=30.0, metavar="N", help="of load (30)")
    parser.add_argument("--database", choices=(*KINDS, "both"), default="both", help="(both)")
    parser.add_argument("--rate", type=float, default=20.0, metavar="N", help="messages/s (20)")
    parser.add_argument(
        "--every", type=float, default=5.0, metavar="S", help="seconds between two kills (5)"
    )
    parser.add_argument("--seed", type=int, help="of what happens at random (a new one)")
    options = parser.parse_args(arguments)
    kinds: Sequence[Kind] = KINDS if options.database == "both" else (options.database,)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    outcomes = []
    with console.command("soak") as terminal, console.Bar(terminal, len(kinds)) as bar:
        for kind in kinds:
            plan = Plan(kind, options.minutes * 60, options.rate, options.every, seed)
            bar.say(f"Soak on {kind}: {options.minutes:g} minutes, seed {seed}")
            with bar.step(kind) as progress, tempfile.TemporaryDirectory(prefix="soak-") as folder:
                outcomes.append(soak(plan, Path(folder), progress))
            show(terminal, outcomes[-1])
    return 0 if all(outcome.has_passed for outcome in outcomes) else 1


@dataclass(frozen=True, slots=True)
class Plan:
    database: Kind
    seconds: float
    rate: float
    every_s: float
    """Average seconds between two kills."""
    seed: int


@dataclass(slots=True)
class Account:
    """Results of the acknowledged messages at one consumer."""

    requests: int
    delivered: int
    dead: int
    lost: int
    duplicates: int
    """Number of messages that were answered with 200 more than once."""


@dataclass(slots=True)
class Outcome:
    plan: Plan
    acknowledged: int = 0
    responses: Counter[int] = field(default_factory=Counter)
    refused: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    accounts: dict[str, Account] = field(default_factory=dict)
    usage: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    """By kind of process: medians of MiB and of open files per process, over time."""
    drained_s: float = 0.0
    reconciliation: str = ""
    """The last line of its report, and whether it found no fault."""
    is_reconciled: bool = False

    @property
    def lost(self) -> int:
        """Number of acknowledged messages that neither arrived nor died, over all consumers."""
        return sum(account.lost for account in self.accounts.values())

    @property
    def has_passed(self) -> bool:
        return bool(self.acknowledged and self.is_reconciled) and not (self.lost or self.refused)


def soak(plan: Plan, folder: Path, progress: Progress) -> Outcome:
    """Run the soak test. Raises BenchError when there is nothing to compare."""
    outcome, random_ = Outcome(plan), random.Random(plan.seed)
    with databases.fresh(plan.database, folder) as database, Sink(plan.seed) as sink:
        broker = Hookstation(database.url, folder)
        try:
            broker.start()
            urls = {
                name: sink.url(number, behavior)
                for number, (name, behavior) in enumerate(CONSUMERS.items())
            }
            broker.register({name: {"url": url, **SETTINGS} for name, url in urls.items()})
            with Producers(broker.single(), plan.rate) as producers:
                _kill_at_random(broker, outcome, random_, progress)
                if broker.supervisor is None:
                    broker.start()
            outcome.acknowledged = len(producers.acknowledged)
            outcome.responses, outcome.refused = producers.responses, producers.refused
            outcome.drained_s = _drain(broker)
            for number, name in enumerate(CONSUMERS):
                outcome.accounts[name] = _account(broker, name, number, sink, producers)
            try:
                report = broker.manage("reconcile", "--grace", "10s")
                outcome.is_reconciled = True
            except BenchError as error:
                report = str(error)
            outcome.reconciliation = report.strip().splitlines()[-1]
        finally:
            broker.stop()
    return outcome


@dataclass(slots=True)
class Producers:
    """Threads that share a rate; each repeats a message until it is accepted."""

    route: Route
    rate: float
    """Messages per second of all threads together."""
    acknowledged: dict[int, str] = field(default_factory=dict)
    """The broker's id of each message, by number."""
    responses: Counter[int] = field(default_factory=Counter)
    """Number of responses by status; 0 is a broken connection."""
    refused: int = 0
    _stopped: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        for number in range(PRODUCERS):
            thread = threading.Thread(target=self._produce, args=[number], daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Wait until each thread has its last response."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _produce(self, number: int) -> None:
        start = time.monotonic()
        with requests.Session() as http:
            http.trust_env = False
            while not self._stopped.is_set():
                self._publish(http, number)
                number += PRODUCERS
                self._stopped.wait(max(0.0, start + number / self.rate - time.monotonic()))

    def _publish(self, http: requests.Session, number: int) -> None:
        to = self.route
        headers = {**to.headers, "Idempotency-Key": f"soak-{number}"}
        url, data = f"http://{to.host}:{to.port}{to.path}", to.pack([body(number)])
        end = time.monotonic() + MAX_RETRY_S
        while time.monotonic() < end:
            try:
                response = http.post(url, data=data, headers=headers, timeout=20)
            except requests.RequestException:
                self.responses[0] += 1
            else:
                self.responses[response.status_code] += 1
                if response.ok:
                    self.acknowledged[number] = response.json()["id"]
                    return
            time.sleep(RETRY_S)
        self.refused += 1


def _kill_at_random(
    broker: Hookstation, outcome: Outcome, random_: random.Random, progress: Progress
) -> None:
    """Kill random processes and note the usage of all until the time is up."""
    plan, start = outcome.plan, time.monotonic()
    next_kill = start + plan.every_s
    while (passed := time.monotonic() - start) < plan.seconds:
        progress(int(passed), int(plan.seconds))
        if broker.supervisor is None:
            broker.start()
        found = _processes(broker.supervisor or 0)
        for kind, pids in found.items():
            files = [count for pid in pids if (count := _open_files(pid))]
            if files:
                mib = median(machine.memory([pid]) / 2**20 for pid in pids)
                outcome.usage[kind].append((mib, int(median(files))))
        if time.monotonic() >= next_kill:
            if killed := _kill_one(found, random_):
                outcome.kills[killed] += 1
            next_kill = time.monotonic() + random_.uniform(0.5, 1.5) * plan.every_s
        time.sleep(min(POLL_S, max(0.0, next_kill - time.monotonic())))


def _processes(supervisor: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for pid in (supervisor, *machine.descendants(supervisor)):
        if command_line := machine.command_line(pid):
            found.setdefault(kind_of(command_line), []).append(pid)
    return found


def kind_of(command_line: str) -> str:
    if "granian" in command_line:
        return "web process" if command_line[-1].isdecimal() else "web"
    if "qcluster" in command_line:
        last = command_line.rpartition(" ")[2]
        return last if last in {"pump", "maintenance"} else "worker"
    if "reaper" in command_line:
        return "reaper"
    if command_line.endswith(" prober"):
        return "prober"
    return "cluster" if "manage.py worker" in command_line else "supervisor"


def _kill_one(found: Mapping[str, Sequence[int]], random_: random.Random) -> str | None:
    """Send SIGKILL to a process of a random kind; returns the kind."""
    kinds = sorted(found.keys() & KILL_WEIGHTS.keys())
    if not kinds:
        return None
    (kind,) = random_.choices(kinds, [KILL_WEIGHTS[kind] for kind in kinds])
    with suppress(ProcessLookupError):
        os.kill(random_.choice(sorted(found[kind])), signal.SIGKILL)
    return kind


def _open_files(pid: int) -> int:
    with suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0


def _drain(broker: Hookstation) -> float:
    """Wait until all deliveries are finished; returns the seconds. Raises BenchError."""
    start = time.monotonic()
    idle_polls = 0
    while time.monotonic() - start < DRAIN_S:
        # Twice, so that messages accepted before the first check are fanned out by the second.
        idle_polls = idle_polls + 1 if not broker.depth() else 0
        if idle_polls == 2:
            return time.monotonic() - start
        time.sleep(POLL_S)
    raise BenchError(f"After {DRAIN_S:.0f} s {broker.depth()} deliveries are still in flight.")


def _account(
    broker: Hookstation, name: str, number: int, sink: Sink, producers: Producers
) -> Account:
    received = [
        (message, ok) for consumer, message, _, ok, _ in sink.log.read() if consumer == number
    ]
    accepted = Counter(message for message, ok in received if ok)
    acknowledged = producers.acknowledged.keys()
    dead_ids = set(_dead_letters(broker, name))
    dead = {it for it, id_ in producers.acknowledged.items() if id_ in dead_ids} - accepted.keys()
    delivered = acknowledged & accepted.keys()
    return Account(
        requests=len(received),
        delivered=len(delivered),
        dead=len(dead),
        lost=len(acknowledged - delivered - dead),
        duplicates=sum(times > 1 for times in accepted.values()),
    )


def _dead_letters(broker: Hookstation, name: str) -> Iterable[str]:
    """Yield the ids of dead messages, each with a reason."""
    cursor = ""
    while True:
        page = broker.read(name, f"/deliveries?state=Dead&limit=200{cursor}")
        yield from (item["message_id"] for item in page["items"] if item["reason"])
        if not page["next"]:
            return
        cursor = f"&cursor={page['next']}"


def show(terminal: Console, outcome: Outcome) -> None:
    """Print the results, and memory and open files of the processes."""
    head = ("consumer", "requests", "acknowledged", "delivered", "dead", "lost", "came twice")
    accounts = []
    for name, it in outcome.accounts.items():
        numbers = (it.requests, outcome.acknowledged, it.delivered, it.dead, it.lost, it.duplicates)
        accounts.append([name, *(f"{number:,}" for number in numbers)])
    terminal.print(_table(head, accounts))
    usage = []
    for kind, measured in sorted(outcome.usage.items()):
        part = max(1, len(measured) // 4)
        (first_mib, first_files), (last_mib, last_files) = (
            map(median, zip(*quarter, strict=True))
            for quarter in (measured[:part], measured[-part:])
        )
        sizes = f"{first_mib:.1f}", f"{last_mib:.1f}", f"{first_files:.0f}", f"{last_files:.0f}"
        usage.append([kind, f"{outcome.kills[kind]}", *sizes])
    usage_head = ("process", "killed", "MiB first", "MiB last", "files first", "files last")
    terminal.print(_table(usage_head, usage))
    responses = ", ".join(
        f"{times:,} x {status}" for status, times in sorted(outcome.responses.items())
    )
    passed = "all is well." if outcome.has_passed else "NOT WELL."
    for line in (
        f"Responses to producers (0: the connection broke): {responses}",
        f"Drained in {outcome.drained_s:.0f} s. Reconciliation: {outcome.reconciliation}",
        f"{outcome.acknowledged:,} messages, {outcome.kills.total()} kills: lost {outcome.lost}, "
        + passed,
    ):
        console.say(terminal, line)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(head):
        table.add_column(name, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    return table


if __name__ == "__main__":
    sys.exit(main())
