"""Define the errors that services raise, as one tree.

BrokerError
 +- Malformed            the request cannot be read              400
 +- Unauthenticated      the key is missing or not valid         401
 +- Forbidden            the caller may not do this              403
 +- NotFound             no such object (for this caller)        404
 +- Conflict             the object's state does not allow this  409
 +- LengthRequired       the body needs a length                 411
 +- PreconditionFailed   If-Match names an older version         412
 +- TooLarge             the body is larger than allowed         413
 +- UnsupportedMediaType the body's type is not accepted         415
 +- Invalid              the values cannot be used               422
 +- RateLimited          too many similar requests right now     429
 +- OverQuota            too many messages wait already          429
 +- Unavailable          this process cannot serve it now        503
 +- KeyUnavailable       this process lacks an encryption key    503
 +- StorageFull          there is no room on the disk            507
 +- Refused              a request on a page cannot be met       409

Each door (REST, gRPC, SQS, the pages, the commands) translates them in one place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from channels_app.core.encryption import KeyMissing
from channels_app.core.program import typed


def printable(text: str) -> str:
    """Text that can be encoded: what callers send may contain unpaired surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class FieldError:
    """One invalid field, with a sentence that says what to do."""

    field: str
    detail: str


class BrokerError(Exception):
    """A refusal with a stable code and a sentence that says how to proceed."""

    status = 400
    """The HTTP status, by which the other doors choose theirs."""
    retry_after_s: float | None = None
    """Seconds after which a retry may succeed; None if waiting does not help."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        field: str = "",
        faults: Sequence[FieldError] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s
        self.code = code
        """Stable, for programs."""
        self.detail = detail
        """For people."""
        self.field = field
        """The invalid field, if there is one."""
        self.faults = tuple(faults)
        """Every invalid field, if several were found at once."""


class Malformed(BrokerError):
    """The request cannot be read."""

    status = 400


class Invalid(BrokerError):
    """The values cannot be used."""

    status = 422

    @classmethod
    def of(cls, faults: Sequence[FieldError]) -> "Invalid":
        """The error for one or more invalid fields; its sentence is that of the first."""
        first = faults[0]
        detail = f"{first.field}: {first.detail}" if first.field else first.detail
        return cls("invalid_fields", detail, field=first.field, faults=faults)


class Unauthenticated(BrokerError):
    """The API key is missing, unknown, revoked or expired."""

    status = 401


class Forbidden(BrokerError):
    """The caller is known, and may not do this."""

    status = 403


class NotFound(BrokerError):
    """The object does not exist, or not for this caller."""

    status = 404


class Conflict(BrokerError):
    """The object is not in a state that allows this."""

    status = 409


class LengthRequired(BrokerError):
    """The end of the body would not be certain without its length."""

    status = 411


class PreconditionFailed(BrokerError):
    """If-Match names a version that is not the current one."""

    status = 412


class TooLarge(BrokerError):
    """The body, or a part of it, is larger than allowed."""

    status = 413


class UnsupportedMediaType(BrokerError):
    """The body has a type or an encoding that is not accepted."""

    status = 415


class RateLimited(BrokerError):
    """Too many similar requests right now; a retry may succeed."""

    status = 429
    retry_after_s = 1


class OverQuota(BrokerError):
    """Too many messages wait in this channel, or of this team."""

    status = 429
    retry_after_s = 5


class Unavailable(BrokerError):
    """This process cannot serve the request now; a retry may succeed."""

    status = 503
    retry_after_s = 1


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
