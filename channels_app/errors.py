"""What a step may refuse, as one tree.

BrokerError
 +- Invalid        the values cannot be used            422
 +- NotFound       no such object (for this caller)     404
 +- Conflict       not in the state that this needs     409
 +- Stale          If-Match names an older version      412
"""


class BrokerError(Exception):
    """A refusal with a stable code and a sentence that says what to do."""

    status = 400

    def __init__(self, code: str, detail: str, *, field: str = "") -> None:
        super().__init__(detail)
        self.code = code
        """Stable, for programs."""
        self.detail = detail
        """For people."""
        self.field = field
        """The offending field, where there is one."""


class Invalid(BrokerError):
    """The values cannot be used."""

    status = 422


class NotFound(BrokerError):
    """There is no such object, or not for this caller."""

    status = 404


class Conflict(BrokerError):
    """The object is not in a state that allows this."""

    status = 409


class Stale(BrokerError):
    """If-Match names a version that is not the current one."""

    status = 412
