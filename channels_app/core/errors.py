"""Define the errors that services raise, as one tree.

BrokerError
 +- Invalid            the values cannot be used               422
 +- Forbidden          the caller may see it, not change it    403
 +- NotFound           no such object (for this caller)        404
 +- Conflict           the object's state does not allow this  409
 +- PreconditionFailed If-Match names an older version         412
 +- RateLimited        too many similar requests right now     429
 +- OverQuota          too many messages wait already          429
 +- StorageFull        there is no room on the disk            507
 +- KeyUnavailable     this process lacks an encryption key    503
 +- Refused            a request on a page cannot be met       409
"""

from collections.abc import Sequence
from dataclasses import dataclass

from channels_app.core.encryption import KeyMissing
from channels_app.core.program import typed


@dataclass(frozen=True, slots=True)
class FieldError:
    """One invalid field, with a sentence that says what to do."""

    field: str
    detail: str


class BrokerError(Exception):
    """A refusal with a stable code and a sentence that says how to proceed."""

    status = 400
    retry_after_s: int | None = None
    """Seconds after which a retry may succeed; None if waiting does not help."""

    def __init__(
        self, code: str, detail: str, *, field: str = "", faults: Sequence[FieldError] = ()
    ) -> None:
        super().__init__(detail)
        self.code = code
        """Stable, for programs."""
        self.detail = detail
        """For people."""
        self.field = field
        """The invalid field, if there is one."""
        self.faults = tuple(faults)
        """Every invalid field, if several were found at once."""


class Invalid(BrokerError):
    """The values cannot be used."""

    status = 422

    @classmethod
    def of(cls, faults: Sequence[FieldError]) -> "Invalid":
        """The error for one or more invalid fields; its sentence is that of the first."""
        first = faults[0]
        detail = f"{first.field}: {first.detail}" if first.field else first.detail
        return cls("invalid_fields", detail, field=first.field, faults=faults)


class Forbidden(BrokerError):
    """The caller may see the object, but not do this with it."""

    status = 403


class NotFound(BrokerError):
    """The object does not exist, or not for this caller."""

    status = 404


class Conflict(BrokerError):
    """The object is not in a state that allows this."""

    status = 409


class PreconditionFailed(BrokerError):
    """If-Match names a version that is not the current one."""

    status = 412


class RateLimited(BrokerError):
    """Too many similar requests right now; a retry may succeed."""

    status = 429
    retry_after_s = 1


class OverQuota(BrokerError):
    """Too many messages wait in this channel, or of this team."""

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
        KeyMissing.__init__(self, key_id)  # code that only displays data shows this shorter text


class Refused(BrokerError):
    """A request that only people make, on pages, and that cannot be met. The API never sees it."""

    status = 409

    def __init__(self, detail: str, *, field: str = "") -> None:
        super().__init__("refused", detail, field=field)
