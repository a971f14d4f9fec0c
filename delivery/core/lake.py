"""Checks that reconcile lake and tables together, and what their findings mean."""

from delivery.core.reconciliation import EXPLANATIONS, Check, Explanation

DOUBLED, UNASKED = "doubled", "unasked"
"""Constraints prevent these in the tables; files have no constraints."""
ASKED = (
    *(Check.LOST, Check.UNDISPATCHED, Check.FAN_OUT, Check.MISSING, Check.ATTEMPTS),
    *(Check.BODIES, Check.ORPHANS),
)
"""Checks with the same names as the broker's own; the others exist only here."""
MEANINGS: dict[str, Explanation] = {
    **{check.value: EXPLANATIONS[check] for check in ASKED},
    DOUBLED: Explanation(
        "row",
        "rows",
        "is there twice: a message, a delivery or an attempt with the same key twice in the lake "
        "or in lake and tables, or two deliveries of a message to one consumer of which nobody "
        "asked for the second.",
        "Reports count it twice, nothing was sent twice for it. Look at the archive's segments of "
        "that day and at what wrote to the lake besides the pipeline.",
    ),
    UNASKED: Explanation(
        "row",
        "rows",
        "is a delivery to a consumer of another channel than its message's: what is in it may "
        "have been sent to somebody whom it does not concern.",
        "Look at who wrote to the tables besides the broker, and ask the receiver to delete it.",
    ),
}
"""A finding is worded as: number, ``row`` or ``rows``, ``meaning``; then ``remedy``."""
