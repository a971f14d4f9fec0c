"""Provide ``manage.py estimate_ordering``, which estimates the cost of ordered delivery."""

import math
from typing import Any

from django.core.management.base import CommandParser

from channels_app.conf import conf
from channels_app.database import clock
from channels_app.registry.cache import ConsumerConfig, config_cache
from delivery.core import ordering
from delivery.core.ordering import BETWEEN_MS, Cost, OrderingLoad
from delivery.maintenance import traffic
from delivery.management.base import Command as BaseCommand
from delivery.management.base import Error
from delivery.models import OrderingKey
from delivery.ordering import hot_keys

HOUR_S = 3600
HEAD = ("", "messages/s", "of one key", "held for", "busy", "waits")
TEMPLATE = "{:<18}{:>12}{:>12}{:>11}{:>8}{:>18}"

OPTIONS: tuple[tuple[tuple[str, ...], type, float | None, str], ...] = (
    (("--keys", "--rooms"), int, None, "ordering keys with deliveries at the same time"),
    (("--latency-ms",), float, None, "response time of the consumer"),
    (("--rate",), float, None, "messages per second, of all keys together"),
    (("--max-in-flight",), int, None, "maximum requests in flight"),
    (("--most",), float, None, "messages per second that this machine delivers unordered"),
    (("--ack-ms",), float, 0.0, "time from response to acknowledgement"),
    (("--lost",), float, 0.0, "percentage of acknowledgements that get lost"),
    (("--timeout-ms",), float, 0.0, "timeout of a lost acknowledgement"),
    (("--between-ms",), float, BETWEEN_MS, "time between two messages of a key (default: 10)"),
)


class Command(BaseCommand):
    """Computes the formulas of docs/ordering.md with the user's figures."""

    help = (
        "Estimate the cost of ordered delivery: messages per second of all keys and of one key, "
        "how long a message holds its key, and how long it waits for earlier ones. Omitted figures "
        "are taken from --consumer: its latest response times, its open keys, and its deliveries "
        "in an hour."
    )
    examples = (
        "  manage.py estimate_ordering --keys 25000 --latency-ms 100 --rate 25000\n"
        "  manage.py estimate_ordering --consumer rooms/sender\n"
        "  manage.py estimate_ordering --keys 50 --latency-ms 20 --ack-ms 300 \\\n"
        "      --lost 12"
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the figures of the load."""
        parser.add_argument("--consumer", metavar="CHANNEL/ID", help="use this consumer's figures")
        for names, kind, default, help_text in OPTIONS:
            parser.add_argument(*names, type=kind, default=default, metavar="N", help=help_text)

    def handle(self, *, consumer: str | None, **options: Any) -> None:
        """Print a table and its consequences."""
        load = _load(_consumer(consumer) if consumer else None, options)
        self.stdout.write(
            f"{load.keys:,} keys, {load.answer_ms:,.0f} ms per response, "
            f"{load.max_in_flight:,} requests in flight"
            + (f", {load.per_second:,.6g} messages/s arriving" if load.per_second else "")
        )
        self.stdout.write("\n" + TEMPLATE.format(*HEAD).rstrip())
        for cost in ordering.costs(load):
            self.stdout.write(_line(cost, load))
        needed = ordering.in_flight(load)
        if needed > load.max_in_flight:
            self.stdout.write(f"\nThis rate needs a max_in_flight of {needed:,}.")


def _load(consumer: ConsumerConfig | None, options: dict[str, Any]) -> OrderingLoad:
    """Return the load: given figures first, then the consumer's."""
    own = _own(consumer) if consumer else {}
    given = {
        "keys": options["keys"],
        "answer_ms": options["latency_ms"],
        "per_second": options["rate"],
        "max_in_flight": options["max_in_flight"],
        "most_per_second": options["most"],
    }
    figures = own | {name: value for name, value in given.items() if value is not None}
    for name, option in (("keys", "--keys"), ("answer_ms", "--latency-ms")):
        if not figures.get(name):
            raise Error(f"Give {option}: it is not known{' yet' if consumer else ''}.")
    if min(figures.values()) < 0 or not 0 <= options["lost"] <= 100:
        raise Error("Figures must not be negative, and --lost is a percentage.")
    figures.setdefault("max_in_flight", conf().max_in_flight)
    return OrderingLoad(
        **figures,
        ack_ms=options["ack_ms"],
        lost=options["lost"] / 100,
        timeout_ms=options["timeout_ms"],
        between_ms=options["between_ms"],
    )


def _consumer(name: str) -> ConsumerConfig:
    slug, _, client_id = name.partition("/")
    config_cache.refresh(now=True)
    for consumer in config_cache.consumers().values():
        if (consumer.channel_slug, consumer.client_id) == (slug, client_id):
            return consumer
    raise Error(f"There is no consumer {name}; name it as channel/client-id.")


def _own(consumer: ConsumerConfig) -> dict[str, Any]:
    """Return a consumer's observed figures: its rate, its latency, and its open keys."""
    most = hot_keys.most_per_second(consumer.id)
    spans = traffic.series(clock.now(), hours=2, step_s=HOUR_S, consumer_id=consumer.id)
    return {
        "keys": OrderingKey.objects.filter(consumer_id=consumer.id).count(),
        "max_in_flight": consumer.max_in_flight,
        "per_second": max(span.delivered for span in spans) / HOUR_S,
        **({"answer_ms": 1000 / most} if most else {}),
    }


def _line(cost: Cost, load: OrderingLoad) -> str:
    """Describe one way of ordering."""
    wait = "never catches up" if cost.wait_ms == math.inf else f"{cost.wait_ms:,.1f} ms"
    is_known = load.per_second and cost.hold_ms
    return TEMPLATE.format(
        cost.name,
        f"{cost.per_second:,.0f}",
        f"{cost.per_key:,.3g}" if cost.hold_ms else "",
        f"{cost.hold_ms:,.0f} ms" if cost.hold_ms else "",
        f"{cost.busy:.0%}" if is_known else "",
        wait if is_known else "",
    ).rstrip()
