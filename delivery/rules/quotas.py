"""Decide when to notify people that a quota is nearly or completely used."""

NEAR = 0.8
"""Share of a limit at which people are notified."""
CALM = 0.7
"""Share below which the warning ends; lower than `NEAR` to prevent repeated notifications."""
OK, NEARLY, FULL = "ok", "near", "full"


def level(known: str, share: float) -> str:
    """Return the current level, given the last reported one; ``share`` may exceed 1.0."""
    if share >= 1.0:
        return FULL
    if share >= NEAR:
        return NEARLY
    return known if known == OK or share >= CALM else OK
