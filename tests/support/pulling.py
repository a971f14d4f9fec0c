"""Create a pull consumer with waiting messages, and a worker that receives over the API."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from channels_app.database import clock
from channels_app.models import Channel, Consumer, Team
from delivery.models import Delivery
from delivery.queue import fanout
from tests.support.calling import Api
from tests.support.factories import ConsumerFactory
from tests.support.pumping import make_channel, publish


@dataclass(slots=True)
class Worker:
    """Receives for one consumer and settles its leases."""

    consumer: Consumer
    api: Api = field(default_factory=lambda: Api(scopes=["receive"]))

    @property
    def path(self) -> str:
        return f"/channels/{self.consumer.channel.slug}/consumers/{self.consumer.client_id}"

    def receive(self, **asked: Any) -> list[dict[str, Any]]:
        """Return received messages."""
        answer = self.api.post(f"{self.path}/receive", asked)
        assert answer.status_code == 200, answer.content
        messages: list[dict[str, Any]] = answer.json()["messages"]
        return messages

    def say(self, what: str, *leases: str, **more: Any) -> tuple[list[str], dict[str, str]]:
        """Settle leases; returns the settled ones, and errors of the others."""
        answer = self.api.post(f"/leases/{what}", {"leases": list(leases), **more})
        assert answer.status_code == 200, answer.content
        said = answer.json()
        return said["done"], {one["lease"]: one["error"] for one in said["failed"]}


def waiting(*bodies: bytes, channel: Channel | None = None, **values: Any) -> Consumer:
    """Create a pull consumer with these messages queued."""
    channel = channel or make_channel()
    team: Team | None = values.pop("team", None)
    consumer = ConsumerFactory.create(channel=channel, team=team, pull=True, **values)
    if bodies:
        bring(consumer, *bodies)
    return consumer


def bring(consumer: Consumer, *bodies: bytes, **options: Any) -> list[int]:
    """Publish and fan out; returns the messages' ids."""
    found = publish(consumer.channel, *bodies, **options)
    while fanout.fan_out(1000, slot=0).more:
        pass
    return found


def row_of(consumer: Consumer) -> Delivery:
    """Return its only delivery."""
    return Delivery.objects.get(consumer=consumer)


def lapse(consumer: Consumer) -> None:
    """Let its leases expire just now."""
    Delivery.objects.filter(consumer=consumer, state="in_flight").update(
        due_at=clock.now() - timedelta(seconds=1)
    )
