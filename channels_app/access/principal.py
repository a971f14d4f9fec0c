"""Say who acts and why, and answer what they may see and do, for every door."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

from django.db.models import Q

from channels_app.core import access
from channels_app.core.errors import Forbidden
from channels_app.models import Channel, Producer


@dataclass(frozen=True, slots=True)
class Principal:
    """The owner of an API key, a person or a command."""

    actor: str
    """The name in the audit log: ``key:<id>``, ``user:alice``, ``command``."""
    reason: str = ""
    is_operator: bool = False
    """May do everything, with the objects of all teams."""
    team_id: int | None = None
    """The team whose objects exist for it. Having no team is a tenant of its own."""
    producer: Producer | None = None
    """The producer that its key belongs to."""
    scopes: Collection[str] = ()
    channels: Collection[str] = ()
    """The channels that its key names. Without any it may use all, a team only external ones."""
    role: str = ""
    """A member's role in the team."""
    key_id: str = ""

    @property
    def producer_id(self) -> int | None:
        """The id of its producer."""
        return self.producer.id if self.producer else None

    @property
    def owner(self) -> tuple[str, int | str]:
        """Whom a limit on concurrency counts: the key's team, its producer, or the key itself."""
        if self.team_id is not None:
            return "team", self.team_id
        if self.producer is not None:
            return "producer", self.producer.id
        return "key", self.key_id

    def because(self, reason: str) -> Self:
        """The same principal, with the reason of its next action."""
        return replace(self, reason=reason)

    def owns(self, team_id: int | None) -> bool:
        """Whether an object of that team exists for it."""
        return self.is_operator or team_id == self.team_id

    def owned(self, field: str = "team_id") -> Q:
        """The condition for rows that exist for it; ``field`` leads to their team's id."""
        return Q() if self.is_operator else Q((field, self.team_id))

    def may(self, *scopes: str) -> bool:
        """Whether it has one of these scopes."""
        return self.is_operator or any(scope in self.scopes for scope in scopes)

    def require(self, *scopes: str) -> None:
        """Raise Forbidden without one of the ``scopes``, if any, and for a disabled producer."""
        if scopes and not self.may(*scopes):
            raise Forbidden("missing_scope", f"The key needs the scope {' or '.join(scopes)}.")
        if self.producer is not None and self.producer.disabled:
            raise Forbidden("producer_disabled", "The producer is disabled.")

    def has_role(self, role: str) -> bool:
        """Whether it is a member with the rights of that role."""
        return bool(self.role) and access.includes(self.role, role)

    @property
    def acts_for_team(self) -> bool:
        """Whether it acts for a team itself, not for a producer or the installation."""
        return self.producer is None and self.team_id is not None and not self.is_operator

    def may_use(self, channel: str) -> bool:
        """Whether its key, which may name channels, allows this one."""
        return self.is_operator or not self.channels or channel in self.channels

    def sees(self, channel: str, exposure: str) -> bool:
        """Whether the channel exists for it: a team's key must name internal ones (S1-21)."""
        if not self.may_use(channel):
            return False
        return exposure == "external" or channel in self.channels or not self.acts_for_team

    def may_publish(self, channel: Channel) -> bool:
        """Whether it may publish on the channel, and can see it."""
        return self.may("publish") and self.sees(channel.slug, channel.exposure)

    def may_open(self, channel: Channel) -> bool:
        """Whether it may read message bodies of the channel and the responses to them."""
        return not channel.sensitive or self.may("sensitive")

    def may_change(self, producer_id: int | None, team_id: int | None) -> bool:
        """Whether it may change what that producer of that team made, or the team itself.

        A producer's key may change only what the producer made.
        """
        if self.producer is None or self.is_operator:
            return self.owns(team_id)
        return producer_id == self.producer.id

    def may_change_shared(self, producer: Producer | None) -> bool:
        """Whether it may change what this producer registered for all: its own, or its team's.

        What the installation registered has no producer.
        """
        if self.is_operator or producer == self.producer:
            return True
        team_id = producer.team_id if producer else None
        return team_id is not None and self.owns(team_id)
