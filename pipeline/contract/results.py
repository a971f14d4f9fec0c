"""Name the checks of an audit, under which the pipeline stores its findings.

An audit checks lake and tables together. All checks but the last two are also the broker's own,
with the same names and exceptions.
"""

DOUBLED = "doubled"
"""A row that is there twice: constraints prevent it in the tables, but files have none."""
UNASKED = "unasked"
"""A delivery to a consumer of another channel than its message's."""
CHECKS = (
    *("lost", "undispatched", "fan_out", "missing", "attempts"),
    *("bodies", "orphans", DOUBLED, UNASKED),
)
"""In the order in which a result lists them."""
