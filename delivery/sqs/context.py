"""Context: who calls, and which queues are there for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from channels_app.api.authentication import Caller
from channels_app.config_cache import ChannelConfig
from delivery.rules.principal import Principal
from delivery.sqs import errors, queues
from delivery.sqs.errors import SqsError
from delivery.sqs.queues import ACCOUNT, QueueView

ANY_SCOPE = ("publish", "receive", "register", "read", "replay")


ResultLater: TypeAlias = Callable[[Callable[[], dict[str, Any]], Callable[[], object]], bool]
"""Makes a postponed call's result and answers with it. Calls its second argument when the answer is
about to go out; False, without that, where the client is gone or there is no result."""


@dataclass(frozen=True, slots=True)
class Context:
    """One request's caller, and how it calls the broker."""

    caller: Caller
    region: str
    """As the request was signed for; resource names repeat it."""
    base_url: str
    """The address that the caller used, without a path."""
    defer: Callable[[], ResultLater] | None = None
    """Postpones the answer, where the server can answer later."""

    def authorize(self, *scopes: str) -> None:
        """Return for a key that has one of the scopes. Raises SqsError."""
        if not self.caller.may(*scopes):
            raise SqsError("AccessDenied", f"The key needs the scope {' or '.join(scopes)}.")
        if self.caller.producer is not None and self.caller.producer.disabled:
            raise SqsError("AccessDenied", "The producer is disabled.")

    def sees(self, channel: ChannelConfig) -> bool:
        """Whether the key may use the channel."""
        return self.caller.sees(channel.slug, channel.exposure)

    def receives(self, queue: QueueView) -> bool:
        """Whether the queue's messages are the key's own, and not those of another team."""
        return self.sees(queue.channel) and self.caller.tenant.owns(queue.consumer.team_id)

    def queue(self, parameters: dict[str, Any], *scopes: str) -> QueueView:
        """The caller's own queue that ``QueueUrl`` names. Raises SqsError."""
        return self.named(queues.name_of_url(parameters.get("QueueUrl")), *scopes)

    def named(self, name: str, *scopes: str) -> QueueView:
        """The same by its name."""
        self.authorize(*scopes)
        queue = queues.find(name)
        if not self.receives(queue):
            raise errors.no_queue()
        return queue

    def target(self, name: str, *scopes: str) -> QueueView:
        """A queue to which the caller may send, whoever receives from it. Raises SqsError."""
        self.authorize(*scopes)
        queue = queues.find(name)
        if not self.sees(queue.channel):
            raise errors.no_queue()
        return queue

    def url_of(self, name: str) -> str:
        """A queue's address."""
        return f"{self.base_url}/{ACCOUNT}/{name}"

    def principal(self, reason: str) -> Principal:
        """The caller, for the audit log."""
        producer = self.caller.producer
        return Principal(
            actor=self.caller.actor,
            reason=reason,
            producer_id=producer.id if producer else None,
            team_id=self.caller.tenant.team_id,
        )
