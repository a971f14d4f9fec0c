"""Lake: what an audit of lake and tables together can find, and what a finding means."""

from delivery.rules.reconciliation import EXPLANATIONS, Check, Explanation

DOUBLED, UNASKED = "doubled", "unasked"
"""What the tables' own constraints keep out of them, and files have none."""
ASKED = (
    *(Check.LOST, Check.UNDISPATCHED, Check.FAN_OUT, Check.MISSING, Check.ATTEMPTS),
    *(Check.BODIES, Check.ORPHANS),
)
"""Under the same names as the broker's own audit finds them; the others it asks alone."""
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
"""A finding reads: number, ``row`` or ``rows``, ``meaning``; then ``remedy``."""
