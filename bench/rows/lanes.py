"""Measure ordered against unordered delivery to a consumer that takes 100 ms per message."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace

from bench.adapters import BenchError, Pack
from bench.bodies import number_in
from bench.broker import Hookstation
from bench.figures import Figure
from bench.flow import Flow
from bench.stage import Row, Stage, Values

KEYS = 25_000
AT_ONCE = 1_000
"""Requests in flight to the consumer, the highest allowed setting."""
TOGETHER, CONNECTIONS = 100, 8
CROWDS = {"tiny": 200, "quick": 20_000, "full": 100_000}
"""Messages of one ordering key that wait behind each other, by mode."""
DRAIN_S = 300.0


def measure(stage: Stage) -> Values:
    """Measure deliveries per second without order, with it, and with it beside one crowded key.

    The unordered case is measured before and after, since a broker is fastest with empty tables.
    """
    before = _deliver(stage, ordering=False)
    ordered = _deliver(stage, ordering=True)
    crowded = _deliver(stage, ordering=True, crowd=CROWDS[stage.sizes.name])
    after = _deliver(stage, ordering=False)
    plain = (before + after) / 2
    return {
        "lanes.plain": plain,
        "lanes.rate": ordered,
        "lanes.ratio": ordered / plain,
        "lanes.crowded": crowded,
        "lanes.crowded_ratio": crowded / plain,
    }


def pack_keys(bodies: Sequence[bytes]) -> bytes:
    """Return a batch of messages with as many keys as there are."""
    items = [(body, f"key-{(number_in(body) or 0) % KEYS}") for body in bodies]
    return json.dumps([{"body": it.decode(), "ordering_key": key} for it, key in items]).encode()


def pack_crowd(bodies: Sequence[bytes]) -> bytes:
    """Return a batch of messages of one key."""
    items = [{"body": body.decode(), "ordering_key": "crowded"} for body in bodies]
    return json.dumps(items).encode()


def _deliver(stage: Stage, *, ordering: bool, crowd: int = 0) -> float:
    settings = {"ordering": ordering, "max_in_flight": AT_ONCE}
    consumers = stage.consumers("later", settings=settings)
    if crowd:
        _hand_in(stage, crowd, [], pack_crowd)
        _settle(stage)
    flow = _hand_in(stage, stage.sizes.batch, consumers, pack_keys)
    if crowd:
        stage.consumers("take")  # waiting deliveries are cancelled with their consumer
        _drain(stage)
    return flow.deliveries / flow.seconds


def _hand_in(stage: Stage, count: int, consumers: Sequence[int], pack: Pack) -> Flow:
    route = stage.broker.batch()
    if route is None:
        raise BenchError("It has no batch endpoint.")
    with stage.follow(
        count,
        consumers,
        route=replace(route, pack=pack),
        connections=CONNECTIONS,
        together=TOGETHER,
    ) as following:
        return following.finish(stage.tell)


def _settle(stage: Stage) -> None:
    """Wait until the number of unfinished deliveries stops growing: all are fanned out."""
    open_before = -1
    while (open_now := _broker(stage).depth()) > open_before:
        open_before = open_now
        time.sleep(1.0)


def _drain(stage: Stage) -> None:
    end = time.monotonic() + DRAIN_S
    while _broker(stage).depth():
        if time.monotonic() > end:
            raise BenchError("What waited behind a key does not end with its consumer.")
        time.sleep(0.5)


def _broker(stage: Stage) -> Hookstation:
    assert isinstance(stage.broker, Hookstation)
    return stage.broker


ROWS = (
    Row(
        "lanes",
        (
            Figure(
                "lanes.plain",
                f"batches to a consumer that takes 100 ms, {AT_ONCE:,} at once, no order",
                "/s",
                digits=0,
            ),
            Figure("lanes.rate", f"- in the order of {KEYS:,} keys", "/s", digits=0),
            Figure(
                "lanes.ratio",
                "- the same",
                "x of no order",
                must=0.9,
                digits=2,
                is_more_better=True,
            ),
            Figure("lanes.crowded", "- beside one key with thousands waiting", "/s", digits=0),
            Figure(
                "lanes.crowded_ratio",
                "- the same",
                "x of no order",
                must=0.9,
                digits=2,
                is_more_better=True,
            ),
        ),
        measure,
        ours_alone=True,
    ),
)
