"""The person or key on whose behalf something is repaired, for the audit log."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """A person, a key or a command, with its reason."""

    actor: str
    """``user:alice``, ``key:<id>``, ``command``."""
    reason: str = ""
    producer_id: int | None = None
    team_id: int | None = None
    """Whose it is: another tenant does not get to see what was asked for."""
