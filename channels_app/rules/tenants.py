"""Decide which objects a caller may access; those of other tenants do not exist for it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tenant:
    """The tenant of a caller. Having no team is a tenant of its own."""

    team_id: int | None = None
    everything: bool = False
    """Whether the caller is an operator, who sees all tenants."""

    def owns(self, team_id: int | None) -> bool:
        """Whether an object of that team exists for this caller."""
        return self.everything or team_id == self.team_id


OPERATOR = Tenant(everything=True)
