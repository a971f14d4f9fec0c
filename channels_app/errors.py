"""What a step may refuse, as one tree.

BrokerError
 +- Invalid        the values cannot be used            422
 +- Forbidden      the caller sees it, it is not theirs 403
 +- NotFound       no such object (for this caller)     404
 +- Conflict       not in the state that this needs     409
 +- Stale          If-Match names an older version      412
 +- Busy           not now, because of what others do   429
 +- OverQuota      too many messages wait already       429
 +- StorageFull    there is no room on the disk         507
 +- KeyUnavailable this process lacks an encryption key 503
 +- Refused        what only people ask for, on pages   409
"""

from collections.abc import Sequence

from channels_app.rules.encryption import KeyMissing
from channels_app.rules.fields import FieldError, InvalidValues
from channels_app.rules.program import typed


class BrokerError(Exception):
    """A refusal with a stable code and a sentence that says what to do."""

    status = 400
    retry_after_s: int | None = None
    """Seconds after which it may be tried again, where time alone may help."""

    def __init__(
        self, code: str, detail: str, *, field: str = "", faults: Sequence[FieldError] = ()
    ) -> None:
        super().__init__(detail)
        self.code = code
        """Stable, for programs."""
        self.detail = detail
        """For people."""
        self.field = field
        """The offending field, where there is one."""
        self.faults = tuple(faults)
        """Every offending field, where several were found at once."""


class Invalid(BrokerError):
    """The values cannot be used."""

    status = 422

    @classmethod
    def of(cls, bad: InvalidValues) -> "Invalid":
        """The refusal of fields that rules/fields.py could not read."""
        first = bad.faults[0]
        detail = f"{first.field}: {first.detail}" if first.field else first.detail
        return cls("invalid_fields", detail, field=first.field, faults=bad.faults)


class Forbidden(BrokerError):
    """The caller sees the object; somebody else decides about it."""

    status = 403


class NotFound(BrokerError):
    """There is no such object, or not for this caller."""

    status = 404


class Conflict(BrokerError):
    """The object is not in a state that allows this."""

    status = 409


class PreconditionFailed(BrokerError):
    """If-Match names a version that is not the current one."""

    status = 412


class RateLimited(BrokerError):
    """Others do the same right now; a moment later it may be done."""

    status = 429
    retry_after_s = 1


class OverQuota(BrokerError):
    """More may not wait in this channel, or of this team's messages."""

    status = 429
    retry_after_s = 5


class StorageFull(BrokerError):
    """There is no room for more messages."""

    status = 507
    retry_after_s = 30


class KeyUnavailable(BrokerError, KeyMissing):
    """This process lacks an encryption key; another one may have it."""

    status = 503
    retry_after_s = 10

    def __init__(self, key_id: str) -> None:
        detail = (
            f"This process does not have the encryption key {key_id}. Nothing was saved. Try "
            "again: another process may have the key. If not, an operator must add it; "
            f"{typed('manage.py doctor')} names the process."
        )
        super().__init__("key_missing", detail)
        KeyMissing.__init__(self, key_id)  # where something is only shown, these words stand


class Refused(BrokerError):
    """What only people ask for, on pages, and cannot have; no program meets it."""

    status = 409

    def __init__(self, detail: str, *, field: str = "") -> None:
        super().__init__("refused", detail, field=field)
