"""Authorize the caller of a request and find its queues."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from channels_app.access.principal import Principal
from channels_app.core.errors import Forbidden
from channels_app.registry.cache import ChannelConfig
from delivery.sqs import errors, queues
from delivery.sqs.queues import ACCOUNT, QueueView

ANY_SCOPE = ("publish", "receive", "register", "read", "replay")


ResultLater: TypeAlias = Callable[[Callable[[], dict[str, Any]], Callable[[], object]], bool]
"""Makes the result of a postponed call and sends it. Calls its second argument just before
sending. Returns False without calling it if the client has disconnected or making the result
failed."""


@dataclass(frozen=True, slots=True)
class Context:
    """The caller of a request and its connection."""

    principal: Principal
    region: str
    """Region in the request's signature; ARNs repeat it."""
    base_url: str
    """URL that the caller used, without a path."""
    defer: Callable[[], ResultLater] | None = None
    """Postpones the response; None if the server cannot."""

    def authorize(self, *scopes: str) -> None:
        """Raise SqsError unless the key has one of the scopes and its producer is enabled."""
        try:
            self.principal.require(*scopes)
        except Forbidden as refused:
            raise errors.of(refused) from None

    def sees(self, channel: ChannelConfig) -> bool:
        """Whether the key may use the channel."""
        return self.principal.sees(channel.slug, channel.exposure)

    def receives(self, queue: QueueView) -> bool:
        """Whether the key may receive the queue's messages, since its team owns the queue."""
        return self.sees(queue.channel) and self.principal.owns(queue.consumer.team_id)

    def queue(self, parameters: dict[str, Any], *scopes: str) -> QueueView:
        """Return the caller's own queue of ``QueueUrl``. Raises SqsError."""
        return self.named(queues.name_of_url(parameters.get("QueueUrl")), *scopes)

    def named(self, name: str, *scopes: str) -> QueueView:
        """Return the caller's own queue with this name. Raises SqsError."""
        self.authorize(*scopes)
        queue = queues.find(name)
        if not self.receives(queue):
            raise errors.no_queue()
        return queue

    def target(self, name: str, *scopes: str) -> QueueView:
        """Return a queue to which the caller may send, of any team. Raises SqsError."""
        self.authorize(*scopes)
        queue = queues.find(name)
        if not self.sees(queue.channel):
            raise errors.no_queue()
        return queue

    def url_of(self, name: str) -> str:
        """Return a queue's URL."""
        return f"{self.base_url}/{ACCOUNT}/{name}"
