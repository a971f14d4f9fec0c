"""Quotas: when people are told that one is nearly, or wholly, used up."""

NEAR = 0.8
"""Share of a limit from which people are told."""
CALM = 0.7
"""Share below which it is over: one that wavers is told of once."""
OK, NEARLY, FULL = "ok", "near", "full"


def level(known: str, share: float) -> str:
    """What holds now, where people were last told ``known``; ``share`` may exceed 1.0."""
    if share >= 1.0:
        return FULL
    if share >= NEAR:
        return NEARLY
    return known if known == OK or share >= CALM else OK
