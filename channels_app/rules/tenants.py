"""Whose objects a caller may touch: another tenant's do not exist for it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tenant:
    """A caller's side of the wall between teams. No team at all is a tenant of its own."""

    team_id: int | None = None
    everything: bool = False
    """An operator: sees across the wall."""

    def owns(self, team_id: int | None) -> bool:
        """Whether an object of that team exists for this caller."""
        return self.everything or team_id == self.team_id


OPERATOR = Tenant(everything=True)
