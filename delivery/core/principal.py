"""The person or key that requests a repair, for the audit log."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """A person, key or command, with a reason."""

    actor: str
    """``user:alice``, ``key:<id>``, ``command``."""
    reason: str = ""
    producer_id: int | None = None
    team_id: int | None = None
    """Its team; other tenants cannot see the request."""
