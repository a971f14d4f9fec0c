"""What a run reports: its exit code, and the checks of an audit under which findings are stored."""

from enum import IntEnum

DOUBLED = "doubled"
"""A row that is there twice: constraints prevent it in the tables, but files have none."""
UNASKED = "unasked"
"""A delivery to a consumer of another channel than its message's."""
CHECKS = (
    *("lost", "undispatched", "fan_out", "missing", "attempts"),
    *("bodies", "orphans", DOUBLED, UNASKED),
)
"""Checks of lake and tables together, in the order in which a result lists them. All but the last
two are also the broker's own, with the same names and exceptions."""


class ExitCode(IntEnum):
    """How a process of a job ended."""

    DONE = 0
    FAILED = 1
    INVALID = 2
    """An option or setting is invalid, or the request cannot be carried out."""
    BUSY = 3
    """Another run of the job is active."""
    FINDINGS = 4
    """Done, and a number that should be 0 is not."""
    STOPPED = 130
    """By Ctrl-C, a signal or the console."""
