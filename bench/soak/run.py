"""Run one soak test: start everything, publish and kill for a while, drain, and compare."""

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import databases
from bench.adapters import BenchError
from bench.broker import Hookstation
from bench.databases import Kind
from bench.progress import Part
from bench.soak import kinds
from bench.soak.consumers import SCRIPTS, SETTINGS, Consumers
from bench.soak.producers import Producers

POLL_S = 2.0
DRAIN_S = 240.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of a soak test."""

    database: Kind
    seconds: float
    rate: float
    every_s: float
    """Average seconds between two kills."""
    seed: int


@dataclass(slots=True)
class Account:
    """Results of the acknowledged messages at one consumer."""

    calls: int
    delivered: int
    dead: int
    lost: int
    twice: int
    """Number of messages that were answered with 200 more than once."""


@dataclass(slots=True)
class Outcome:
    """Results of a soak test."""

    plan: Plan
    acknowledged: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    given_up: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    accounts: dict[str, Account] = field(default_factory=dict)
    growth: kinds.Growth = field(default_factory=kinds.Growth)
    drained_s: float = 0.0
    audit: str = ""
    """The last line of the reconciliation's report, and whether it found no fault."""
    is_audited: bool = False

    @property
    def lost(self) -> int:
        """Number of acknowledged messages that neither arrived nor died, over all consumers."""
        return sum(account.lost for account in self.accounts.values())

    @property
    def is_well(self) -> bool:
        """Whether the soak test passed."""
        return bool(self.acknowledged and self.is_audited) and not (self.lost or self.given_up)


def soak(plan: Plan, folder: Path, tell: Part) -> Outcome:
    """Run the soak test. Raises BenchError when there is nothing to compare."""
    outcome, chance = Outcome(plan), random.Random(plan.seed)
    with databases.fresh(plan.database, folder) as database, Consumers(plan.seed) as consumers:
        broker = Hookstation(database.url, folder)
        try:
            broker.start()
            broker.register({name: {"url": consumers.url(name), **SETTINGS} for name in SCRIPTS})
            with Producers(broker.single(), plan.rate) as producers:
                _break(broker, outcome, chance, tell)
                if broker.supervisor is None:
                    broker.start()
            outcome.acknowledged = len(producers.acknowledged)
            outcome.answers, outcome.given_up = producers.answers, producers.given_up
            outcome.drained_s = _drain(broker)
            for name in SCRIPTS:
                outcome.accounts[name] = _account(broker, name, producers.acknowledged, consumers)
            _audit(broker, outcome)
        finally:
            broker.stop()
    return outcome


def _break(broker: Hookstation, outcome: Outcome, chance: random.Random, tell: Part) -> None:
    """Kill random processes until the time is up."""
    plan, start = outcome.plan, time.monotonic()
    next_kill = start + plan.every_s
    while (passed := time.monotonic() - start) < plan.seconds:
        tell(int(passed), int(plan.seconds))
        if broker.supervisor is None:
            broker.start()
        found = kinds.look(broker.supervisor or 0)
        outcome.growth.note(found)
        if time.monotonic() >= next_kill:
            if killed := kinds.kill_one(found, chance):
                outcome.kills[killed] += 1
            next_kill = time.monotonic() + chance.uniform(0.5, 1.5) * plan.every_s
        time.sleep(min(POLL_S, max(0.0, next_kill - time.monotonic())))


def _drain(broker: Hookstation) -> float:
    """Wait until all deliveries are finished; returns the seconds. Raises BenchError."""
    start = time.monotonic()
    calm = 0
    while time.monotonic() - start < DRAIN_S:
        # Twice, so that messages accepted before the first check are fanned out by the second.
        calm = calm + 1 if not broker.depth() else 0
        if calm == 2:
            return time.monotonic() - start
        time.sleep(POLL_S)
    raise BenchError(f"After {DRAIN_S:.0f} s {broker.depth()} deliveries are still on their way.")


def _account(broker: Hookstation, name: str, ids: set[str], consumers: Consumers) -> Account:
    taken = consumers.taken[name]
    delivered = ids & taken.keys()
    dead = set(_dead(broker, name)) - taken.keys()
    return Account(
        calls=consumers.calls[name],
        delivered=len(delivered),
        dead=len(ids & dead),
        lost=len(ids - delivered - dead),
        twice=sum(number > 1 for number in taken.values()),
    )


def _dead(broker: Hookstation, name: str) -> Sequence[str]:
    """Return the dead messages, each with a reason."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = broker.look(name, f"/deliveries?state=Dead&limit=200{cursor}")
        found += page["items"]
        if not page["next"]:
            return [item["message_id"] for item in found if item["reason"]]
        cursor = f"&cursor={page['next']}"


def _audit(broker: Hookstation, outcome: Outcome) -> None:
    try:
        report = broker.manage("reconcile", "--grace", "10s")
    except BenchError as error:
        outcome.audit = str(error)
        return
    outcome.audit, outcome.is_audited = report.strip().splitlines()[-1], True
