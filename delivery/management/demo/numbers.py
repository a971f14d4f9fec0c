"""Read the demo's figures from the broker: counts, first deliveries and latencies."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import requests
from django.db.models import F

from delivery.core.lifecycle import DeliveryState
from delivery.management.demo.stage import Stage
from delivery.models import ConsumerHealth, Counter, Delivery
from delivery.models.counter import OPEN

SAMPLE = 5000


@dataclass(frozen=True, slots=True)
class Counts:
    """Deliveries of one consumer by result."""

    delivered: int = 0
    waiting: int = 0
    """Not finished: due now, or waiting for the next attempt."""
    dead: int = 0

    def since(self, start: "Counts") -> "Counts":
        """Return the difference to ``start``; ``waiting`` is the present number."""
        return Counts(self.delivered - start.delivered, self.waiting, self.dead - start.dead)


@dataclass(slots=True)
class Checked:
    """Requests and signatures that the receiver checked."""

    requests: int = 0
    valid: int = 0
    invalid: int = 0


@dataclass(slots=True)
class Numbers:
    """Reads the figures of one run, without rows of earlier runs."""

    stage: Stage
    first_id: int
    """Lower bound of this run's delivery ids."""
    checked: Checked = field(default_factory=Checked)

    def counts(self) -> dict[str, Counts]:
        """Return counts by consumer from the counter rows, as fast with a million deliveries."""
        read = Counter.read(self.stage.consumers.values())
        return {
            name: Counts(
                delivered=read[id][DeliveryState.DELIVERED.value],
                waiting=sum(read[id][state] for state in OPEN),
                dead=read[id][DeliveryState.DEAD.value],
            )
            for name, id in self.stage.consumers.items()
        }

    def first(self, consumer: str, state: DeliveryState) -> Delivery | None:
        """Return the earliest accepted delivery of this run in a state."""
        rows = Delivery.objects.filter(
            consumer_id=self.stage.consumers[consumer], state=state.value, id__gte=self.first_id
        )
        return rows.order_by("id").first()

    def open_circuits(self) -> set[str]:
        """Return consumers with an open circuit."""
        names = {id: name for name, id in self.stage.consumers.items()}
        rows = ConsumerHealth.objects.filter(consumer_id__in=names, circuit="open")
        return {names[id] for id in rows.values_list("consumer_id", flat=True)}

    def latencies(self, consumers: Iterable[str]) -> list[float]:
        """Return the sorted seconds from acceptance to delivery of this run's newest deliveries."""
        seconds: list[float] = []
        for name in consumers:
            rows = (
                Delivery.objects.filter(
                    consumer_id=self.stage.consumers[name],
                    state=DeliveryState.DELIVERED.value,
                    id__gte=self.first_id,
                )
                .order_by("-id")
                .annotate(took=F("finished_at") - F("accepted_at"))
            )
            seconds += [
                took.total_seconds() for took in rows.values_list("took", flat=True)[:SAMPLE]
            ]
        return sorted(seconds)

    def ask_receiver(self) -> None:
        """Update ``checked``; it stays as it is when the receiver does not respond."""
        try:
            answer = requests.get(f"{self.stage.receiver.url}/stats", timeout=2).json()
        except (requests.RequestException, ValueError):
            return
        tallies = answer.values()
        self.checked = Checked(
            requests=sum(tally["requests"] for tally in tallies),
            valid=sum(tally["valid"] for tally in tallies),
            invalid=sum(tally["invalid"] for tally in tallies),
        )
